"""Four apps on small real data: matrix factorisation, topics, page rank and softmax regression."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Final, cast

import numpy as np

from seqgc._digits import digit_images
from seqgc.errors import ParameterError, did_you_mean, require_int, require_number
from seqgc.ports import FloatArray, IntArray
from seqgc.tables._app import App, require_app
from seqgc.worker import call_own, own_function, own_module

__all__ = [
    "APPS",
    "LDA",
    "MLR",
    "Documents",
    "MatrixFactorization",
    "PageRank",
    "digits_mlr",
    "help_texts",
    "made_ratings",
    "named_app",
    "photograph",
    "python_imports",
]

_Tables = Mapping[str, FloatArray]


# ---- matrix factorisation ------------------------------------------------------------------------


def photograph(*, step: int = 6, known: float = 0.3, seed: int = 0) -> FloatArray:
    """Return a photograph of scikit-learn in shades of grey, in [0, 1], with gaps of NaN.

    Only every ``step``-th row and column is used. Of their pixels, a fraction ``known`` is drawn
    with ``seed``; the others become NaN.

    Raises
    ------
    ParameterError
        If scikit-learn or Pillow is not installed.
    """
    package = find_spec("sklearn")
    if package is None or not package.submodule_search_locations or find_spec("PIL") is None:
        rule = "needs scikit-learn, which contains the photograph, and Pillow"
        raise ParameterError("data", rule, "photograph", "pip install 'seqgc[demo,plot]'")
    from PIL import Image

    file = Path(package.submodule_search_locations[0], "datasets", "images", "flower.jpg")
    with Image.open(file) as image:
        grey = np.asarray(image.convert("L"), dtype=np.float64)[::step, ::step] / 255
    hidden = np.random.default_rng(seed).random(grey.shape) >= known
    ratings: FloatArray = np.where(hidden, np.nan, grey)
    return ratings


def made_ratings(*, rows: int, columns: int, rank: int = 2, seed: int = 0) -> FloatArray:
    """Return a made-up matrix (rows, columns) of this rank, with half of its entries NaN."""
    rng = np.random.default_rng(seed)
    full = rng.normal(size=(rows, rank)) @ rng.normal(size=(rank, columns))
    ratings: FloatArray = np.where(rng.random(full.shape) < 0.5, np.nan, full)
    return ratings


@dataclass(frozen=True, kw_only=True, eq=False)
class MatrixFactorization:
    """The factors L (rows, rank) and R (columns, rank) of a matrix that is partly known.

    Minimises the mean squared error of the known entries, with a penalty of ``penalty`` times the
    squares of the factors, by stochastic gradient descent. An item is a row of ``ratings`` (rows,
    columns), whose unknown entries are NaN. Its known entries move their row of L, and their rows
    of R, by ``rate`` times the error. The objective is the mean squared error.

    Source: Koren, Bell and Volinsky, "Matrix factorization techniques for recommender systems",
    2009; as in Cui et al. 2014, 4.2, where a work unit is one entry.
    """

    ratings: FloatArray
    rank: int = 8
    rate: float = 0.01
    penalty: float = 0.01

    def __post_init__(self) -> None:
        require_int("rank", self.rank, least=1)
        if self.ratings.ndim != 2 or not np.isfinite(self.ratings).any():
            rule = "must be a matrix with at least one known entry"
            raise ParameterError("ratings", rule, self.ratings.shape)

    @property
    def items(self) -> int:
        return len(self.ratings)

    def rated(self, factor: float) -> MatrixFactorization:
        return replace(self, rate=self.rate * factor)

    def initial(self, rng: np.random.Generator) -> dict[str, FloatArray]:
        rows, columns = self.ratings.shape
        scale = self.rank**-0.5
        return {
            "L": scale * rng.random((rows, self.rank)),
            "R": scale * rng.random((columns, self.rank)),
        }

    def process(self, tables: _Tables, items: IntArray, rng: np.random.Generator) -> None:
        left, right = tables["L"], tables["R"]
        for row in rng.permutation(items):
            known = np.flatnonzero(np.isfinite(self.ratings[row]))
            errors = self.ratings[row, known] - right[known] @ left[row]
            change = errors @ right[known] - self.penalty * len(known) * left[row]
            right[known] += self.rate * (np.outer(errors, left[row]) - self.penalty * right[known])
            left[row] += self.rate * change

    def objective(self, tables: _Tables) -> float:
        with np.errstate(over="ignore", invalid="ignore"):
            return float(np.nanmean((self.ratings - tables["L"] @ tables["R"].T) ** 2))


# ---- topics --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Documents:
    """Documents as word numbers: ``words`` (tokens,) belong to documents that begin at ``starts``.

    ``starts`` (documents + 1,) ends with the number of tokens. ``vocabulary`` are the words.
    """

    words: IntArray
    starts: IntArray
    vocabulary: tuple[str, ...]


def help_texts(*, vocabulary: int = 400, most: int = 150) -> Documents:
    """Return the words of Python's own help texts.

    The vocabulary are the ``vocabulary`` most frequent words of at least five letters. Of each
    text, the first ``most`` words that are in the vocabulary are used. Texts with fewer than ten
    such words are left out.
    """
    from pydoc_data.topics import topics

    texts = [re.findall(r"[a-z]{5,}", text.lower()) for _, text in sorted(topics.items())]
    counts = Counter(word for text in texts for word in text)
    chosen = [word for word, _ in counts.most_common(vocabulary)]
    number = {word: place for place, word in enumerate(chosen)}
    documents = [[number[word] for word in text if word in number][:most] for text in texts]
    documents = [text for text in documents if len(text) >= 10]
    return Documents(
        words=np.array([word for text in documents for word in text]),
        starts=np.cumsum([0, *map(len, documents)]),
        vocabulary=tuple(chosen),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class LDA:
    """Latent Dirichlet allocation with ``topics`` topics, by collapsed Gibbs sampling.

    An item is a document. For each of its words, a new topic is drawn from the distribution that
    all other assignments imply. The tables are counts: of words in topics (vocabulary, topics), of
    topics (topics,), and of topics in documents (documents, topics), and the topic of each token.
    ``alpha`` and ``beta`` are the priors. The objective is the negative mean log likelihood of a
    word, in nats.

    Source: Griffiths and Steyvers, "Finding scientific topics", 2004, equation 5.
    """

    documents: Documents
    topics: int = 8
    alpha: float = 0.1
    beta: float = 0.01
    has_item_state: ClassVar[bool] = True

    @property
    def items(self) -> int:
        return len(self.documents.starts) - 1

    def initial(self, rng: np.random.Generator) -> dict[str, FloatArray]:
        words, starts = self.documents.words, self.documents.starts
        topic = rng.integers(self.topics, size=len(words))
        of_words = np.zeros((len(self.documents.vocabulary), self.topics))
        of_documents = np.zeros((self.items, self.topics))
        document = np.repeat(np.arange(self.items), np.diff(starts))
        np.add.at(of_words, (words, topic), 1)
        np.add.at(of_documents, (document, topic), 1)
        return {
            "words": of_words,
            "topics": of_words.sum(axis=0),
            "documents": of_documents,
            "topic": topic.astype(np.float64),
        }

    def process(self, tables: _Tables, items: IntArray, rng: np.random.Generator) -> None:
        words, starts = self.documents.words, self.documents.starts
        of_words, totals, topic = tables["words"], tables["topics"], tables["topic"]
        prior = self.beta * len(of_words)
        for document in items:
            mine = tables["documents"][document]
            draws = rng.random(starts[document + 1] - starts[document])
            for token, draw in zip(
                range(starts[document], starts[document + 1]), draws, strict=True
            ):
                word, old = words[token], int(topic[token])
                mine[old] -= 1
                of_words[word, old] -= 1
                totals[old] -= 1
                # Counts of other workers may be old, so that a difference may be below 0.
                chances = np.maximum(of_words[word] + self.beta, self.beta) * (mine + self.alpha)
                chances /= np.maximum(totals + prior, prior)
                sums = chances.cumsum()
                new = int(np.searchsorted(sums, draw * sums[-1]))
                mine[new] += 1
                of_words[word, new] += 1
                totals[new] += 1
                topic[token] = new

    def objective(self, tables: _Tables) -> float:
        of_words, of_documents = tables["words"], tables["documents"]
        by_word = (of_words + self.beta) / (tables["topics"] + self.beta * len(of_words))
        sizes = of_documents.sum(axis=1, keepdims=True)
        by_document = (of_documents + self.alpha) / (sizes + self.alpha * self.topics)
        document = np.repeat(np.arange(self.items), np.diff(self.documents.starts))
        chances = (by_word[self.documents.words] * by_document[document]).sum(axis=1)
        return float(-np.log(chances).mean())


# ---- page rank -----------------------------------------------------------------------------------


def python_imports() -> dict[str, tuple[str, ...]]:
    """Return, for each module of Python's standard library, the other ones that it imports.

    Packages and modules without source are left out.
    """
    folder = Path(re.__file__).parent.parent
    names = sorted(name for name in sys.stdlib_module_names if (folder / f"{name}.py").exists())
    pattern = re.compile(r"^\s*(?:import|from)\s+(\w+)", re.MULTILINE)
    graph = dict[str, tuple[str, ...]]()
    for name in names:
        text = (folder / f"{name}.py").read_text("utf-8", errors="replace")
        found = {each for each in pattern.findall(text) if each != name}
        graph[name] = tuple(each for each in names if each in found)
    return graph


@dataclass(frozen=True, kw_only=True)
class PageRank:
    """The rank of each node of a graph, by passing on changes.

    A node's rank is ``1 - damping``, plus ``damping`` times the ranks of the nodes that link to it,
    each divided by the number of its links. An item is a node: it passes on what it has not passed
    on yet. The table ``sent`` (nodes,) is what a node has passed on. The objective is the largest
    error of these equations.

    Source: Page, Brin, Motwani and Winograd, "The PageRank citation ranking", 1999; the changes
    as in Zhang et al., "Maiter", 2014.

    Examples
    --------
    >>> from seqgc.tables import run_app
    >>> app = PageRank(graph={"a": ("b",), "b": ("a", "c"), "c": ("a",)})
    >>> run = run_app(app, "uncoded", workers=1, clocks=60)
    >>> run.tables["rank"].round(2), run.objective < 1e-6
    (array([1.19, 1.16, 0.64]), True)
    """

    graph: Mapping[str, tuple[str, ...]]
    damping: float = 0.85
    has_item_state: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= require_number("damping", self.damping) < 1:
            raise ParameterError("damping", "must satisfy 0 <= damping < 1", self.damping)
        for node, links in self.graph.items():
            if unknown := [link for link in links if link not in self.graph]:
                rule = f"must have only links to its nodes; {node!r} has another one"
                raise ParameterError("graph", rule, unknown[0])

    @property
    def items(self) -> int:
        return len(self.graph)

    @cached_property
    def _links(self) -> list[IntArray]:
        number = {name: place for place, name in enumerate(self.graph)}
        return [
            np.array([number[link] for link in links], dtype=np.int64)
            for links in self.graph.values()
        ]

    def initial(self, rng: np.random.Generator) -> dict[str, FloatArray]:  # noqa: ARG002
        ranks = np.full(self.items, 1 - self.damping)
        return {"rank": ranks, "sent": np.zeros(self.items)}

    def process(self, tables: _Tables, items: IntArray, rng: np.random.Generator) -> None:  # noqa: ARG002
        rank, sent = tables["rank"], tables["sent"]
        for node in items:
            if len(links := self._links[node]):
                change = rank[node] - sent[node]
                rank[links] += self.damping * change / len(links)
                sent[node] = rank[node] if node not in links else sent[node] + change

    def objective(self, tables: _Tables) -> float:
        expected = np.full(self.items, 1 - self.damping)
        for node, links in enumerate(self._links):
            if len(links):
                expected[links] += self.damping * tables["rank"][node] / len(links)
        return float(np.abs(tables["rank"] - expected).max())


# ---- softmax regression --------------------------------------------------------------------------


def digits_mlr(*, rate: float = 1.0) -> MLR:
    """Return softmax regression on 1,797 handwritten digits, with a column of ones for the bias.

    Raises
    ------
    ParameterError
        If scikit-learn, which contains the digits, is not installed.
    """
    images, labels = digit_images()
    points = np.ones((len(labels), 65))
    points[:, :64] = images.reshape(len(labels), 64)
    return MLR(points=points, labels=labels, rate=rate)


@dataclass(frozen=True, kw_only=True, eq=False)
class MLR:
    """Softmax (multinomial logistic) regression by gradient descent on all data.

    An item is a point of ``points`` (m, features) with its class in ``labels`` (m,). The table
    ``weights`` is (features, classes). Each clock moves the weights by ``rate`` times the gradient
    of the mean cross-entropy, which is the objective.
    """

    points: FloatArray
    labels: IntArray
    rate: float = 1.0
    classes: int = field(init=False)

    def __post_init__(self) -> None:
        if self.points.ndim != 2 or self.labels.shape != (len(self.points),):
            shapes = f"{self.points.shape} and {self.labels.shape}"
            rule = "must be points (m, features) and labels (m,)"
            raise ParameterError("points", rule, shapes)
        object.__setattr__(self, "classes", int(self.labels.max()) + 1)

    @property
    def items(self) -> int:
        return len(self.points)

    def rated(self, factor: float) -> MLR:
        return replace(self, rate=self.rate * factor)

    def initial(self, rng: np.random.Generator) -> dict[str, FloatArray]:  # noqa: ARG002
        return {"weights": np.zeros((self.points.shape[1], self.classes))}

    def process(self, tables: _Tables, items: IntArray, rng: np.random.Generator) -> None:  # noqa: ARG002
        points = self.points[items]
        errors = self._chances(points, tables["weights"])
        errors[np.arange(len(items)), self.labels[items]] -= 1
        tables["weights"] -= self.rate / self.items * (points.T @ errors)

    def objective(self, tables: _Tables) -> float:
        chances = self._chances(self.points, tables["weights"])
        with np.errstate(divide="ignore"):
            return float(-np.log(chances[np.arange(self.items), self.labels]).mean())

    @staticmethod
    def _chances(points: FloatArray, weights: FloatArray) -> FloatArray:
        scores = points @ weights
        scores -= scores.max(axis=1, keepdims=True)
        chances: FloatArray = np.exp(scores)
        chances /= chances.sum(axis=1, keepdims=True)
        return chances


# ---- names ---------------------------------------------------------------------------------------

APPS: Final[Mapping[str, tuple[Callable[[], App], float]]] = {
    "mf": (lambda: MatrixFactorization(ratings=photograph()), 0.02),
    "lda": (lambda: LDA(documents=help_texts(most=40)), 4.65),
    "pagerank": (lambda: PageRank(graph=python_imports()), 0.05),
    "mlr": (digits_mlr, 0.6),
}
"""By name, a function that returns the app, and an objective that it reaches in about 20 clocks."""


def named_app(name: str, *, argument: str = "app") -> tuple[App, float | None]:
    """Return the app with this name, and its usual target; or the app of a user's own function.

    ``package.module:function`` names a function that is called without arguments and returns an
    app; it has no usual target. ``argument`` is the name of the argument in errors.

    Raises
    ------
    ParameterError
        If there is no app with this name, or the function does not return an app.

    Examples
    --------
    >>> app, target = named_app("pagerank")
    >>> type(app).__name__, target
    ('PageRank', 0.05)
    """
    if own_module(name) is None:
        if name not in APPS:
            rule = f"must be {', '.join(APPS)}, or your own package.module:function"
            raise ParameterError(argument, rule, name, did_you_mean(name, APPS))
        make, target = APPS[name]
        return make(), target
    app = call_own(own_function(name, argument=argument), name, argument=argument)
    require_app(app)
    return cast("App", app), None
