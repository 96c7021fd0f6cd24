"""Registry of published knowledge bases, with their URLs and digests, and a function to download them."""

import dataclasses
import hashlib
import re
from pathlib import Path

from phalanx.io.atomic import atomic_directory
from phalanx.io.download import Progress, fetch
from phalanx.kg.formats import SPLITS
from phalanx.kg.knowledge_base import KnowledgeBase

HOST = "https://raw.githubusercontent.com"
_MAX_FILE_BYTES = 1 << 28
_FILES_WITH_RULES = (*SPLITS, "rules", "domain2constants", *(f"{split}_depths" for split in SPLITS))


@dataclasses.dataclass(frozen=True)
class KGDatasetSource:
    """Download location and digest of a published knowledge base."""

    path: str
    """URL path of the folder that contains the files, relative to the host."""
    digest: str
    """Expected return value of `folder_digest` for the downloaded folder."""
    description: str
    files: tuple[str, ...] = SPLITS
    """Names of the files, without the `.txt` suffix."""
    relation_first: bool = False
    """True if the columns of the files are relation, head, tail. They are reordered to head, relation, tail
    after the download."""
    folder: str = "kg-standard"
    """Subfolder of the data folder, `kg-standard` or `kg`. The dataset is saved in a new folder inside it."""


_ROTATE = "DeepGraphLearning/KnowledgeGraphEmbedding/617062aaedf53bf4d6b44450a580a96dc30e0632/data"
_VILLMOW = "villmow/datasets_knowledge_embedding/9e392453d6804d1f51c13e5650ae58ed48b638d5/other"
_RED_GNN = "LARS-research/RED-GNN/e064161e8d2b8b3e0ed17d7a746cbcb43b3c327e/transductive/data"
_GRAIL = "kkteru/grail/master/data"
_DEEPPROOFLOG = "DeepProofLog/Batched_Env/main/data"

_DIGEST_LINES = (Path(__file__).parent / "dataset_digests.txt").read_text("utf-8").splitlines()
_DIGESTS = {name: digest for digest, name in map(str.split, _DIGEST_LINES)}


def _inductive_source(name: str) -> KGDatasetSource:
    path = name.removeprefix("inductive/").replace("wn18rr", "WN18RR")
    return KGDatasetSource(f"{_GRAIL}/{path}", _DIGESTS[name], "GraIL's inductive split")


def _source_with_rules(name: str) -> KGDatasetSource:
    path, text = name.removeprefix("deepprooflog/"), "with rules and depths, from DeepProofLog"
    return KGDatasetSource(f"{_DEEPPROOFLOG}/{path}", _DIGESTS[name], text, _FILES_WITH_RULES, folder="kg")


DATASETS: dict[str, KGDatasetSource] = {
    "wn18rr": KGDatasetSource(
        f"{_ROTATE}/wn18rr", _DIGESTS["wn18rr"], "WordNet, 86,835 triples; the split used in papers"
    ),
    "fb15k-237": KGDatasetSource(f"{_ROTATE}/FB15k-237", _DIGESTS["fb15k-237"], "Freebase, 272,115 triples"),
    "umls": KGDatasetSource(f"{_VILLMOW}/umls", _DIGESTS["umls"], "medical terms, 5,216 triples"),
    "kinship": KGDatasetSource(
        f"{_VILLMOW}/kinship", _DIGESTS["kinship"], "Alyawarra kinship, 8,548 triples", relation_first=True
    ),
    "family": KGDatasetSource(
        f"{_RED_GNN}/family",
        _DIGESTS["family"],
        "people, 23,483 triples, as used by RED-GNN and NCRL",
        (*SPLITS, "facts"),
    ),
    **{name: _inductive_source(name) for name in _DIGESTS if name.startswith("inductive/")},
    **{name: _source_with_rules(name) for name in _DIGESTS if name.startswith("deepprooflog/")},
}
"""Downloadable knowledge bases, by the name that `phalanx kg download` accepts."""


def dataset_folder(name: str, root: Path) -> Path:
    """Return the folder in which a dataset is saved.

    If `root` is `data`, the folder for `umls` is `data/kg-standard/umls`, and the folder for
    `deepprooflog/umls` is `data/kg/umls`.
    """
    return root / DATASETS[name].folder / name.removeprefix("deepprooflog/")


def download_dataset(
    name: str,
    root: Path,
    *,
    host: str = HOST,
    verify: bool = True,
    progress: Progress | None = None,
) -> tuple[Path, KnowledgeBase]:
    """Download a knowledge base, and return its folder and the parsed knowledge base.

    Line endings and the order of columns are normalized, so that files from different mirrors have the same
    digest. If the digest does not match or a file cannot be parsed, nothing is saved.

    Args:
        name: A name in `DATASETS`.
        root: Data folder. The dataset is saved in its `kg` or `kg-standard` subfolder.
        host: Base URL of the server. Change it to download from a mirror of GitHub.
        verify: Raise `ValueError` if the digest of the files does not match `KGDatasetSource.digest`.
        progress: Callback that reports the download progress of each file; see
            `phalanx.io.download.Progress`.
    """
    if name not in DATASETS:
        raise ValueError(f"unknown dataset {name!r}; available datasets: {', '.join(DATASETS)}")
    source, target = DATASETS[name], dataset_folder(name, root)
    if target.exists():
        raise FileExistsError(f"{target} already exists; remove it to download it again")
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_directory(target) as folder:
        for file in source.files:
            path = folder / f"{file}.txt"
            fetch(f"{host}/{source.path}/{file}.txt", path, _MAX_FILE_BYTES, progress=progress)
            path.write_bytes(_normalize(path.read_bytes(), source.relation_first))
        digest = folder_digest(folder)
        if verify and digest != source.digest:
            raise ValueError(
                f"{name} from {host} is not the expected version: its digest is {digest}, expected "
                f"{source.digest}; use --no-verify to save it anyway"
            )
        knowledge_base = KnowledgeBase.load(folder, on_leak="allow")
    return target, knowledge_base.replace(name=target.name)


def folder_digest(folder: Path) -> str:
    """Return the SHA-256 of the names and normalized contents of a folder's text files, sorted by name."""
    found = hashlib.sha256()
    for path in sorted(folder.glob("*.txt")):
        found.update(path.name.encode() + b"\n" + _normalize(path.read_bytes()))
    return found.hexdigest()


def _normalize(text: bytes, relation_first: bool = False) -> bytes:
    """Normalize the text of a file of triples.

    CRLF line endings are converted to LF, and a missing LF at the end is added. If `relation_first` is true,
    the columns are reordered from relation, head, tail to head, relation, tail.
    """
    text = text.replace(b"\r\n", b"\n")
    if relation_first:
        text = re.sub(rb"(?m)^([^\t\n]*)\t([^\t\n]*)\t([^\t\n]*)$", rb"\2\t\1\t\3", text)
    return text if not text or text.endswith(b"\n") else text + b"\n"
