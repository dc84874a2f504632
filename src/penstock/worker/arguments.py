"""Between a handler's signature and a job's payload: checked when a job is enqueued, and again when it runs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import asdict

from penstock.core import bounds, codec
from penstock.core.codec import JsonText
from penstock.core.errors import InvalidInput
from penstock.worker.context import JobContext

_PATH = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")


class Arguments:
    """The arguments a handler takes, by name. Dataclasses, msgspec structs, pydantic models, dates and the like are understood."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        signature = inspect.signature(function)
        hints = _hints(function)
        self.context: str | None = None
        """The name of the parameter that takes the JobContext, if there is one."""
        self._signature = signature
        self._takes_more = False
        fields: list[Any] = []
        parameters: list[inspect.Parameter] = []
        for name, parameter in signature.parameters.items():
            annotation = hints.get(name, Any)
            if _is_context(annotation):
                self.context = name
                continue
            parameters.append(parameter)
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
                raise TypeError(
                    f"{function.__qualname__}: the argument {name!r} cannot be given by name, "
                    "and a job's payload names its arguments"
                )
            if parameter.kind is parameter.VAR_KEYWORD:
                self._takes_more = True
            elif parameter.default is parameter.empty:
                fields.append((name, annotation))
            else:
                fields.append((name, annotation, msgspec.UNSET))
        self._signature = signature.replace(parameters=parameters)
        try:
            self._type = msgspec.defstruct(
                function.__name__, fields, kw_only=True, forbid_unknown_fields=not self._takes_more
            )
            self._decoder = msgspec.json.Decoder(self._type, dec_hook=_from_plain)
        except TypeError as error:
            raise TypeError(
                f"{function.__qualname__}: a job's arguments travel as JSON, and an annotation does not allow that: {error}"
            ) from None

    def payload(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> JsonText:
        """The payload for a call with these arguments, which must fit the signature."""
        try:
            given = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise InvalidInput("arguments", f"fit {self._shown()} ({error})", dict(kwargs) or args) from None
        for parameter in self._signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                given |= given.pop(parameter.name, {})
        text = to_json(given, field="payload", limit=bounds.PAYLOAD_BYTES)
        self.load(text)
        return text

    def load(self, payload: JsonText) -> dict[str, Any]:
        """The arguments to call the handler with."""
        try:
            if not self._takes_more:
                loaded = self._decoder.decode(payload)
            else:
                more = msgspec.json.decode(payload)
                loaded = msgspec.convert(more, self._type, dec_hook=_from_plain)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            found = _PATH.search(str(error))
            field = found["path"] if found and found["path"] else "arguments"
            problem = _PATH.sub("", str(error)).replace("`", "")
            raise InvalidInput(field, f"fit {self._shown()} ({problem})", payload) from None
        values = {name: value for name, value in asdict(loaded).items() if value is not msgspec.UNSET}
        return {**more, **values} if self._takes_more else values

    def _shown(self) -> str:
        return (
            f"{self._function.__name__}{self._signature.replace(return_annotation=inspect.Signature.empty)}"
        )


def to_json(value: Any, *, field: str, limit: int) -> JsonText:
    """Any value a handler may take or give, as JSON text."""
    try:
        plain = msgspec.to_builtins(value, enc_hook=_to_plain, str_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(field, f"be JSON ({error})", value) from None
    return codec.encode(plain, field=field, limit=limit)


def _to_plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):  # a pydantic model, without importing pydantic
        return value.model_dump(mode="json")
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")


def _from_plain(wanted: type, value: Any) -> Any:
    if hasattr(wanted, "model_validate"):
        try:
            return wanted.model_validate(value)
        except ValueError as error:
            raise ValueError("; ".join(str(error).splitlines()[1:3]).strip() or str(error)) from None
    if isinstance(value, wanted):
        return value
    raise ValueError(f"a {wanted.__name__} cannot be read from JSON")


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except Exception:
        # Some name exists for the type checker only. Take what can be had; the rest is not checked.
        hints = {}
        for name, annotation in inspect.get_annotations(function).items():
            try:
                text = annotation if isinstance(annotation, str) else None
                hints[name] = annotation if text is None else eval(text, function.__globals__)
            except Exception:
                hints[name] = JobContext if annotation in ("JobContext", "penstock.JobContext") else Any
        return hints


def _is_context(annotation: Any) -> bool:
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return isinstance(annotation, type) and issubclass(annotation, JobContext)
