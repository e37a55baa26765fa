"""Hooks of mkdocs: links that leave docs/, formulas as MathML, and the API reference.

Pages link to files of the repository by relative paths, as GitHub wants them. The site has a copy of each of these
files under repo/: pictures and tables as they are, Markdown and source as pages, folders as lists of their files.
"""

import ast
import pathlib
import posixpath
import re
import urllib.parse
from xml.etree import ElementTree

from latex2mathml import converter
from mkdocs import exceptions
from mkdocs.structure import files as mkdocs_files

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = "hyperagent_jax"
# A link or picture of Markdown, as [text](target) or ![text](target), and what may stand before it.
LINK = re.compile(r"(\[(?:[^\[\]]|\[[^\]]*\])*\]\()([^()\s]+)(\))")
FENCE = re.compile(r"^(```|~~~).*?^\1[^\n]*$", re.MULTILINE | re.DOTALL)
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
NAMESPACE = "http://www.w3.org/1998/Math/MathML"
PRIME = "\u2032"
# Code within a line.
CODE = re.compile(r"<code>([^<>\n]+)</code>")
# Longer words of code may break, because they could be wider than a phone.
LONGEST_WORD = 40
# The first item of a list right after a line of text, which Markdown takes for one paragraph and GitHub does not.
LIST = re.compile(r"^(?![-*|#\s]|\d+\. )(.+\n)(?=(?:- |1\. ))", re.MULTILINE)
LANGUAGES = {".py": "python", ".yml": "yaml", ".toml": "toml", ".cff": "yaml", "": "text"}

# The API reference: title, modules. A package stands for all its modules.
REFERENCE = {
    "hyperagent_jax": [],
    "Data, indices and randomness": ["types", "indices", "prng", "errors"],
    "networks": ["networks"],
    "losses": ["losses"],
    "Learner and actor": [
        "learner",
        "learner_types",
        "actor",
        "posterior",
        "optimizers",
        "lazy_adam",
        "langevin",
        "sharding",
        "rows",
    ],
    "replay": ["replay"],
    "agents": ["agents"],
    "environments": ["environments"],
    "runners": ["runners"],
    "tabular": ["tabular"],
    "experiment": ["experiment"],
    "analysis": ["analysis"],
    "paper": ["paper"],
    "Files and settings": [
        "binding",
        "checkpoint",
        "checks",
        "config",
        "files",
        "host_memory",
        "npz",
        "results",
        "timing",
    ],
}


def on_config(config):
    """Appends the API reference to the navigation; refuses one that lacks a module."""
    there = {
        path.stem for path in (ROOT / PACKAGE).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    if missing := there - {"__init__"} - {name for names in REFERENCE.values() for name in names}:
        raise exceptions.PluginError(f"the API reference lacks {', '.join(sorted(missing))}: add it to REFERENCE")
    pages = [{title: _reference_path(title)} for title in REFERENCE]
    config.nav = [*config.nav, {"API reference": pages}]
    return config


def on_files(files, config):
    """Adds the API reference and whatever pages link to outside docs/."""
    for title, names in REFERENCE.items():
        content = _reference_index() if not names else _reference_page(title, names)
        files.append(mkdocs_files.File.generated(config, _reference_path(title), content=content))
    pending = list((ROOT / "docs").rglob("*.md"))
    while pending:
        for path in _followed(pending.pop()):
            if path.exists() and not path.is_relative_to(ROOT / "docs") and _uri(path) not in files.src_uris:
                files.append(_copy(config, path))
                pending.append(path)
    return files


def on_page_markdown(markdown, page, config, files):
    """Points links of a page to the copies in the site, and starts lists where GitHub does."""
    source = _source(page.file.src_uri)
    if source is None:
        return markdown
    here = posixpath.dirname(page.file.src_uri)

    def rewrite(match):
        path, anchor = _resolve(source, match[2])
        if path is None or (path.is_relative_to(ROOT / "docs") and not page.file.src_uri.startswith("repo/")):
            return match[0]
        return f"{match[1]}{posixpath.relpath(_uri(path), here or '.')}{anchor}{match[3]}"

    return _outside_fences(lambda text: LIST.sub(r"\1\n", LINK.sub(rewrite, text)), markdown)


def on_page_content(html, page, config, files):
    """Turns formulas into MathML, which browsers draw without a script, and keeps words of code in one piece."""

    def convert(match):
        formula = match[3].replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">")
        display = "block" if match[2] == "[" else "inline"
        mathml = _readable(converter.convert(formula, display=display))
        return f'<span class="display-formula">{mathml}</span>' if display == "block" else mathml

    return CODE.sub(_unbroken, FORMULA.sub(convert, html))


def _readable(mathml):
    """Returns MathML whose accents, primes and bars look right in browsers without a font for mathematics, too."""
    root = ElementTree.fromstring(mathml.replace(f' xmlns="{NAMESPACE}"', ""))
    for node in root.iter():
        if node.tag == "mover":
            node.set("accent", "true")
        elif node.tag == "mo" and node.text == "|":  # would have the space of an operator on both sides
            node.attrib.update(lspace="0", rspace="0", stretchy="false")
        elif node.tag in ("msup", "msubsup") and node[-1].text == PRIME:  # would shrink to a dot
            base, subscript = node[0], node[1:-1]
            primed = ElementTree.Element("mrow")
            primed.append(base)
            ElementTree.SubElement(primed, "mo", lspace="0", rspace="0").text = PRIME
            node.tag = "msub" if subscript else "mrow"
            node[:] = [primed, *subscript]
    root.set("xmlns", NAMESPACE)
    return ElementTree.tostring(root, encoding="unicode")


def _unbroken(match):
    """Returns code whose words do not break at hyphens."""
    words = (f'<span class="word">{x}</span>' if len(x) <= LONGEST_WORD else x for x in match[1].split(" "))
    return f"<code>{' '.join(words)}</code>"


def _outside_fences(change, text):
    """Applies a change to all of a text but its fenced code."""
    parts, end = [], 0
    for fence in FENCE.finditer(text):
        parts += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(text[end:])])


def _links(text):
    return LINK.findall(FENCE.sub("", text))


def _resolve(source, target):
    """Returns the file that a link of `source` leads to, and its anchor; None for anchors alone and for hosts."""
    if "://" in target or target.startswith(("#", "mailto:")):
        return None, ""
    path, mark, anchor = urllib.parse.unquote(target).partition("#")
    return pathlib.Path(posixpath.normpath((source.parent / path).as_posix())), mark + anchor


def _followed(path):
    """Returns what a page or folder of the repository links to."""
    if path.is_dir():
        return _children(path)
    if path.suffix != ".md":
        return []
    found = (_resolve(path, target)[0] for _, target, _ in _links(path.read_text(encoding="utf-8")))
    return [path for path in found if path is not None]


def _children(folder):
    return sorted(path for path in folder.iterdir() if not path.name.startswith((".", "__pycache__")))


def _source(uri):
    """Returns the Markdown file that a page is made from, or None."""
    path = ROOT / uri.removeprefix("repo/") if uri.startswith("repo/") else ROOT / "docs" / uri
    return path if path.is_file() else None


def _uri(path):
    """Returns where the site has a file or folder of the repository."""
    name = path.relative_to(ROOT).as_posix()
    if path.is_relative_to(ROOT / "docs"):
        return name.removeprefix("docs/")
    if path.is_dir():
        return f"repo/{name}/" + ("README.md" if (path / "README.md").exists() else "index.md")
    return f"repo/{name}" + (".md" if path.suffix in LANGUAGES else "")


def _copy(config, path):
    """Returns the site's copy of a file or folder of the repository."""
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir() and not (path / "README.md").exists():
        here = _uri(path).removesuffix("index.md")
        lines = [f"- [{x.name}{'/' * x.is_dir()}]({posixpath.relpath(_uri(x), here)})" for x in _children(path)]
        content = "\n".join([f"# {name}", "", *lines, ""])
        return mkdocs_files.File.generated(config, _uri(path), content=content)
    if path.is_file() and path.suffix in LANGUAGES:
        content = f"# {name}\n\n```{LANGUAGES[path.suffix]}\n{path.read_text(encoding='utf-8')}\n```\n"
        return mkdocs_files.File.generated(config, _uri(path), content=content)
    path = path / "README.md" if path.is_dir() else path
    return mkdocs_files.File.generated(config, _uri(path), abs_src_path=str(path))


def _reference_path(title):
    return f"api/{title.lower().replace(',', '').replace(' ', '_')}.md"


def _reference_page(title, names):
    """Returns a page with every public module of the given modules and packages."""
    lines = [f"# {title}", ""]
    for name in names:
        place = ROOT / PACKAGE / name
        paths = (
            [place, *sorted(place.rglob("*.py"), key=_last_checks)]
            if place.is_dir()
            else [place.with_suffix(".py")]
        )
        for path in paths:
            if path.name == "__init__.py" and path.parent == place:
                continue
            parts = path.relative_to(ROOT).with_suffix("").parts
            package = path.is_dir() or path.name == "__init__.py"
            module = ".".join(parts).removesuffix(".__init__")
            lines += [f"::: {module}", *["    options: {members: false}"] * package, ""]
    return "\n".join(lines)


def _last_checks(path):
    """Sorts modules by name, those that check arguments behind the others."""
    return path.parent, path.stem == "checks", path


def _reference_index():
    """Returns a table of `hyperagent_jax.__all__`."""
    tree = ast.parse((ROOT / PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    homes = {
        x.name: f"{node.module}.{x.name}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for x in node.names
    }
    (names,) = (
        ast.literal_eval(x.value) for x in tree.body if isinstance(x, ast.Assign) and x.targets[0].id == "__all__"
    )
    rows = [f"| [`hx.{name}`][{homes[name]}] | {_first_paragraph(homes[name])} |" for name in names]
    return "\n".join(
        [f"# {PACKAGE}", "", "```", ast.get_docstring(tree), "```", "", "| name | |", "|---|---|", *rows, ""]
    )


def _first_paragraph(home):
    """Returns the first paragraph of a docstring in one line, without importing what it belongs to."""
    place = ROOT.joinpath(*home.split("."))
    for path in (place.with_suffix(".py"), place / "__init__.py"):
        if path.exists():
            return (
                ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
                .partition("\n\n")[0]
                .replace("\n", " ")
            )
    tree = ast.parse(place.parent.with_suffix(".py").read_text(encoding="utf-8"))
    (found,) = (node for node in tree.body if getattr(node, "name", None) == place.name)
    return ast.get_docstring(found).partition("\n\n")[0].replace("\n", " ")
