"""What is asked of the hub, by `huggingface_hub`: its endpoint, its tokens, its headers. Knows no disk.

Tokens come from the hub's own variables and files (`HF_TOKEN`, `hf auth login`), and addresses may carry a
signature: no message here has either.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

from ftagent import __version__
from ftagent.errors import PullFailed
from ftagent.hub.files import Digest, Listing, RemoteFile

SMALL_BYTES = 2**26  # more than any index has
_TRANSIENT = frozenset((408, 429, 500, 502, 503, 504))
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


class ConnectionLost(Exception):
    """The hub or the way to it failed in a manner that may pass. Says how, in a few words."""


class Hub:
    """One repository of the hub. `endpoint` as in `HF_ENDPOINT`, which holds if it is None."""

    def __init__(self, repo: str, endpoint: str | None = None) -> None:
        self.repo = repo
        self.endpoint = (endpoint or constants.ENDPOINT).rstrip("/")
        # Else the hub is asked for a list of agents, and then told which of them runs this process.
        constants.HF_HUB_DISABLE_TELEMETRY = True
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # we say ourselves what went wrong

    def listing(self, revision: str) -> Listing:
        """All files at a branch, tag or commit; the result pins it. Raises PullFailed or ConnectionLost."""
        api = HfApi(endpoint=self.endpoint, library_name="ftagent", library_version=__version__)
        with self._errors(f"revision {revision!r}"):
            try:
                info = api.model_info(
                    self.repo,
                    revision=revision,
                    files_metadata=True,
                    timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
                )
            except HfHubHTTPError:  # which may be a ValueError too
                raise
            except (ValueError, KeyError, TypeError) as error:  # of reading the answer
                raise self._no_hub() from error
        if not info.sha or not re.fullmatch(r"[0-9a-f]{40}", info.sha) or info.siblings is None:
            raise self._no_hub()
        files = []
        for item in info.siblings:
            if item.size is None:
                raise PullFailed(f"{self.endpoint} gives no size for {item.rfilename!r} of {self.repo}")
            digest = item.lfs.sha256 if item.lfs else item.blob_id
            files.append(RemoteFile(item.rfilename, item.size, digest or ""))
        return Listing(self.repo, info.sha, tuple(files))

    def _no_hub(self) -> PullFailed:
        return PullFailed(
            f"{self.endpoint} does not answer as a hub does; check HF_ENDPOINT, and whether the network asks "
            "for a login first"
        )

    def read(self, commit: str, file: RemoteFile) -> bytes:
        """A small file, whole and checked. Raises PullFailed or ConnectionLost."""
        if file.size > SMALL_BYTES:
            raise PullFailed(f"{file.name} of {self.repo} is no text file: it has {file.size} bytes")
        data = b""
        if file.size:
            with self.stream(commit, file, 0, file.size) as (_, chunks):
                for chunk in chunks:
                    data += chunk
                    if len(data) >= file.size:
                        break
        digest = Digest(file)
        digest.update(data)
        if len(data) != file.size or not digest.agrees():
            raise PullFailed(differs(self.repo, file))
        return data

    @contextmanager
    def stream(
        self, commit: str, file: RemoteFile, begin: int, end: int
    ) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Bytes `begin` to `end` of a file, in chunks; with them the byte at which they really begin, 0 where
        the server does not do ranges. Raises PullFailed or ConnectionLost, while reading too.
        """
        url = hf_hub_url(self.repo, file.name, revision=commit, endpoint=self.endpoint)
        headers = {
            **build_hf_headers(library_name="ftagent", library_version=__version__),
            "Accept-Encoding": "identity",
            "Range": f"bytes={begin}-{end - 1}",
        }
        timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        # The session follows redirects, and leaves the token out where they lead to another host.
        with (
            self._errors(file.name),
            get_session().stream("GET", url, headers=headers, timeout=timeout) as response,
        ):
            hf_raise_for_status(response)
            # As they come: chunks of a set size would be lost with the connection.
            yield self._begin(file, begin, response), response.iter_bytes()

    def _begin(self, file: RemoteFile, begin: int, response: httpx2.Response) -> int:
        if response.status_code != 206:
            length = response.headers.get("Content-Length", str(file.size))
            if length != str(file.size) and "Content-Encoding" not in response.headers:
                raise PullFailed(differs(self.repo, file))
            return 0
        found = _RANGE.match(response.headers.get("Content-Range", ""))
        if not found or int(found[1]) != begin or found[2] not in ("*", str(file.size)):
            raise PullFailed(differs(self.repo, file))
        return begin

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Errors of the network as one line each, with what to do."""
        try:
            yield
        except OfflineModeIsEnabled:
            raise PullFailed("the hub is switched off by HF_HUB_OFFLINE; unset it and run again") from None
        except HfHubHTTPError as error:
            status = error.response.status_code
            if status in _TRANSIENT:
                raise ConnectionLost(f"{self.endpoint} answered {status}") from None
            raise PullFailed(self._refusal(error, status, what)) from None
        except (httpx2.UnsupportedProtocol, httpx2.InvalidURL):
            raise PullFailed(f"{self.endpoint!r} is no address of a hub; see HF_ENDPOINT") from None
        except httpx2.ConnectError as error:
            raise ConnectionLost(f"{self.endpoint} cannot be reached ({error})") from None
        except httpx2.TransportError as error:
            raise ConnectionLost(f"{self.endpoint}: {type(error).__name__}") from None
        except httpx2.HTTPError as error:
            name = type(error).__name__
            raise PullFailed(f"{self.endpoint} cannot be asked ({name}); see HF_ENDPOINT") from None

    def _refusal(self, error: HfHubHTTPError, status: int, what: str) -> str:
        repo, where = self.repo, self.endpoint
        if isinstance(error, GatedRepoError):
            return f"{repo} is gated: accept its terms at {where}/{repo}, then log in with `hf auth login`"
        if isinstance(error, RevisionNotFoundError):
            return f"{repo} has no {what}; {where}/{repo} lists its branches and tags"
        if isinstance(error, RemoteEntryNotFoundError):
            return f"{where} does not find {what} of {repo} ({status}), which it lists; run again later"
        if isinstance(error, RepositoryNotFoundError):
            return (
                f"{where} knows no model {repo}, or it is private ({status}); check the name, and for a "
                "private model log in with `hf auth login`"
            )
        if status in (401, 403):
            return f"{where} refuses {what} of {repo} ({status}); check the token: `hf auth whoami`"
        return f"{where} answered {status} for {what} of {repo}; check the name and HF_ENDPOINT"


def differs(repo: str, file: RemoteFile) -> str:
    """The message for a file that arrived otherwise than the hub has listed it."""
    kind = "SHA-256" if len(file.digest) == 64 else "hash"
    return (
        f"{file.name} of {repo}: what arrived is not what the hub lists ({file.size} bytes, {kind} "
        f"{file.digest[:12]}); it was dropped: run the same command again, and without a proxy if it stays so"
    )
