"""Registry of published knowledge bases, with their URLs and digests, and a function to download them."""

import dataclasses
import hashlib
import re
import tempfile
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
    """Name of the folder, inside the data folder, in which the dataset is saved."""


_ROTATE = "DeepGraphLearning/KnowledgeGraphEmbedding/617062aaedf53bf4d6b44450a580a96dc30e0632/data"
_VILLMOW = "villmow/datasets_knowledge_embedding/9e392453d6804d1f51c13e5650ae58ed48b638d5/other"
_RED_GNN = "LARS-research/RED-GNN/e064161e8d2b8b3e0ed17d7a746cbcb43b3c327e/transductive/data"
_GRAIL = "kkteru/grail/master/data"
_DEEPPROOFLOG = "DeepProofLog/Batched_Env/main/data"

_DIGESTS = {
    "wn18rr": "782e840766cb092c88b125a68e6dc9df7fa5d06878986a26d880f06408ff5b17",
    "fb15k-237": "00a1f97a5cab4194a019645e3f74a11a633d475048e869c1bb3e5a9dba2f920e",
    "umls": "06f1a041e7d6308d517c23b97f2d916a5d4abb5efd7b379dc2874e682bf80e2c",
    "kinship": "6e6622c1fb3259b31e224354e53cc2e36cd19d0d36ad9585151f7142f19fd41b",
    "family": "bfa89dc0a7494bbb731a8f5e70840f54a7202b4f4b63fa507f7719e770682520",
}
_INDUCTIVE = {
    "fb237_v1": "d3102d1ba4914db8a31c513b88526b90dc2497828d45ddbb1e85ac18fe9130e4",
    "fb237_v1_ind": "11176c38d5be7de18180eba548eb55bf4d8d8af92bccbd5a258dbb8f40d9885e",
    "fb237_v2": "22a7327601c85ba944973d1a2eda77af3a5520fc84d194e9cbc842d678e3538c",
    "fb237_v2_ind": "46a0a3c5ad86f71bd9a18b4764e320c8e16faa568bd0c0148509f4a3f9ffc2d4",
    "fb237_v3": "38071eb8464f8a950ae15024c5b84749342cbd16b426d398374400701c1908da",
    "fb237_v3_ind": "a49e98c2b731979523ef568e4ef7f83f6c84e7b805029a492ceb24160edd0cc7",
    "fb237_v4": "9a1cef4722544e02ea6d67466d59f8b46cb2457070a2bcad04969aa536153f28",
    "fb237_v4_ind": "49b332948c55cb1970c9e907634d24183b5a880f4ed07de27e1944dc9d206e90",
    "wn18rr_v1": "7fc1c9b44e0d965a901b74016dc491213cfbe25d1f9020fea3cfd126c888f4d5",
    "wn18rr_v1_ind": "0ec29192127e24985d25cafc6fc86d69108f4d2cec45951ee417a797ada5a592",
    "wn18rr_v2": "944daac94a8d6519142ec4309ee984310c124f107f4cb307dc9b0d722e386a9b",
    "wn18rr_v2_ind": "ee76de16c17033f883a32b0b9387f40209c516d6bf984bc85306c397f3d7a2cd",
    "wn18rr_v3": "7d7e90a85cef22b8aee03e69132420f92d18a6b7eeae26ba3c78d39b1ce8e681",
    "wn18rr_v3_ind": "b6cb868da7d2193ada7d724fd5346fe10d69f9cd5d63b0d059d2ccd19d0d8e81",
    "wn18rr_v4": "60eec2ef30db88ed9060413afef7508ea88d7d0796a2ef7d80904dfc91cfff01",
    "wn18rr_v4_ind": "8006ad52d1d942b8c8d73a4e713760265e62cd830e88b8ef771ed9f36e3d4af8",
}
_RULES = {
    "countries_s3": "06a2c6092f405b35e8f757b1799f60e66d6009958ca68914538be3c3312c1357",
    "family": "5944982865d881601ba2d4b7c3932780c64d27c813c39fac10e0dffc17aa28a0",
    "nations": "eb1ab48389bbcb0b210d4d595badc07edbcd1c79551fbc5fd62fcd1a89da80e6",
    "umls": "beefe658538370f10db69971082ead36683e64c0cedab59de1943aeb35103f51",
    "wn18rr": "cdf56c048b75a6f81b48dcd431173990c0d4cf8670579768e2428eae91fd8a68",
}


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
    **{
        f"inductive/{name}": KGDatasetSource(
            f"{_GRAIL}/{name.replace('wn18rr', 'WN18RR')}", digest, "GraIL's inductive split"
        )
        for name, digest in _INDUCTIVE.items()
    },
    **{
        f"deepprooflog/{name}": KGDatasetSource(
            f"{_DEEPPROOFLOG}/{name}",
            digest,
            "with rules and depths, from DeepProofLog",
            _FILES_WITH_RULES,
            folder="kg",
        )
        for name, digest in _RULES.items()
    },
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

    Line endings and columns are normalized, so that files from different mirrors have the same digest. If the
    digest does not match or a file cannot be parsed, nothing is saved.

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
    with atomic_directory(target) as folder, tempfile.TemporaryDirectory(prefix="phalanx-") as scratch:
        for file in source.files:
            downloaded = Path(scratch, file)
            fetch(f"{host}/{source.path}/{file}.txt", downloaded, _MAX_FILE_BYTES, progress=progress)
            (folder / f"{file}.txt").write_bytes(_normalize(downloaded.read_bytes(), source.relation_first))
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
    """Convert line endings to newlines and, if needed, reorder the columns to head, relation, tail."""
    text = text.replace(b"\r\n", b"\n")
    if relation_first:
        text = re.sub(rb"(?m)^([^\t\n]*)\t([^\t\n]*)\t([^\t\n]*)$", rb"\2\t\1\t\3", text)
    return text if not text or text.endswith(b"\n") else text + b"\n"
