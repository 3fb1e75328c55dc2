"""Ridge regression, and features of images from a dictionary of patches.

Coates, Lee and Ng, "An analysis of single-layer networks in unsupervised feature learning", 2011:
patches are normalized and whitened, compared with a dictionary of random patches or of k-means
centers ("triangle" activation), and averaged over the four quadrants of the image.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

PATCH, STRIDE, QUADRANTS = 6, 2, 2
_SAMPLE, _ITERATIONS, _COMPARED = 200_000, 10, 1 << 26  # patches and centers at a time
_CONTRAST, _WHITENING = 10.0, 0.1  # of gray levels 0 to 255, as in the paper


class PatchFeatures:
    """Dictionary of whitened patches, fitted on training images."""

    def __init__(self, images: Tensor, size: int, *, kmeans: bool):
        """Draw patches of the images (N, S, S), and cluster them if `kmeans`."""
        generator = torch.Generator().manual_seed(0)
        side = images.shape[1] - PATCH + 1
        rows = torch.randint(len(images), (_SAMPLE,), generator=generator)
        top, left = torch.randint(side, (2, _SAMPLE), generator=generator)
        steps = torch.arange(PATCH)
        down, right = top[:, None, None] + steps[:, None], left[:, None, None] + steps
        patches = images[rows[:, None, None], down, right]
        patches = _normalize(patches.flatten(1).float())
        self._mean = patches.mean(0)
        values, vectors = torch.linalg.eigh(torch.cov(patches.T))
        self._whitening = vectors @ torch.diag((values + _WHITENING).rsqrt()) @ vectors.T
        patches = (patches - self._mean) @ self._whitening
        self._centers = _cluster(patches, size) if kmeans else patches[:size]

    def __call__(self, images: Tensor) -> Tensor:
        """Return the features (N, 4 * size) of images (N, S, S)."""
        batch = max(1, _COMPARED // (_steps(images) ** 2 * len(self._centers)))
        return torch.cat([self._encode(part.float()) for part in images.split(batch)])

    def _encode(self, images: Tensor) -> Tensor:
        patches = _normalize(F.unfold(images[:, None], PATCH, stride=STRIDE).mT)
        patches = (patches - self._mean) @ self._whitening
        distances = _distances(patches, self._centers).sqrt_()
        active = (distances.mean(-1, keepdim=True) - distances).clamp_(min=0).mT
        side = _steps(images)
        return F.adaptive_avg_pool2d(active.unflatten(2, (side, side)), QUADRANTS).flatten(1)


def _steps(images: Tensor) -> int:
    """Return the number of patches in a row of an image."""
    return (images.shape[-1] - PATCH) // STRIDE + 1


def _normalize(patches: Tensor) -> Tensor:
    centered = patches - patches.mean(-1, keepdim=True)
    return centered / (patches.var(-1, keepdim=True) + _CONTRAST).sqrt()


def _distances(patches: Tensor, centers: Tensor) -> Tensor:
    squares = patches.square().sum(-1, keepdim=True) + centers.square().sum(-1)
    return (squares - 2 * patches @ centers.T).clamp_(min=0)


def _cluster(patches: Tensor, size: int) -> Tensor:
    """Return the centers of k-means; a center without patches stays where it is."""
    centers = patches[:size].clone()
    for _ in range(_ITERATIONS):
        nearest = torch.cat([_distances(x, centers).argmin(-1) for x in patches.split(10_000)])
        counts = torch.bincount(nearest, minlength=size)[:, None]
        sums = torch.zeros_like(centers).index_add_(0, nearest, patches)
        centers = torch.where(counts > 0, sums / counts.clamp(min=1), centers)
    return centers


class Ridge:
    """Linear regression of the classes (1 or -1) on standardized features, with a penalty."""

    def __init__(self, features: Tensor, labels: Tensor):
        """Compute the products that every penalty shares."""
        self._mean, self._scale = features.mean(0), features.std(0).clamp(min=1e-6)
        targets = 2 * F.one_hot(labels).float() - 1
        self._targets, rows = targets.mean(0), self._standardize(features)
        self._gram, self._products = rows.T @ rows, rows.T @ (targets - self._targets)
        self._weights = self._products

    def fit(self, penalty: float) -> "Ridge":
        """Solve for a penalty on the squared weights."""
        matrix = self._gram.double() + penalty * torch.eye(len(self._gram), dtype=torch.float64)
        factor = torch.linalg.cholesky(matrix)
        self._weights = torch.cholesky_solve(self._products.double(), factor).float()
        return self

    def predict(self, features: Tensor) -> Tensor:
        """Return the class of each row."""
        return (self._standardize(features) @ self._weights + self._targets).argmax(-1)

    def _standardize(self, features: Tensor) -> Tensor:
        return (features - self._mean) / self._scale
