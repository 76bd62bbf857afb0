"""Replaces secrets in commands before they are sent, stored, shown or logged.

Client and server both use it, the server for clients that do not. It finds values whose name says
that they are secret, credentials in URLs and headers, options of well-known programs, and tokens
by their form. Programs, flags, paths and hashes stay, so predictions do. Knows no shell syntax
beyond quotes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

MASK = "REDACTED"
"""Stands in place of a secret; a plain word in bash, in a URL and in JSON."""
MAX_HITS = 500
"""Places looked at in one text, which is cut there. Real commands have a tenth of that."""


def redact_secrets(text: str) -> str:
    """Return the text with MASK in place of each secret; the same text if there is none.

    Linear in the length of the text: some microseconds for an ordinary command, about 3 ms for an
    adversarial one of 16 KiB. Redacting twice changes nothing.
    """
    return _mask_random_runs(_Scan(text).redacted())


class _Scan:
    """One walk over the places of a text that may announce a secret."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._pieces: list[str] = []
        self._copied = 0
        self._options: Mapping[str, str] = {}
        """Of the last program that was named: its options that take a secret."""

    def redacted(self) -> str:
        text = self._text
        # The dotted capital I is the one letter whose lower case is longer than itself.
        lowered = text.replace("\u0130", "I").lower()
        position = 0
        for _ in range(MAX_HITS):
            hit = _HINT.search(lowered, position)
            if hit is None:
                self._pieces.append(text[self._copied :])
                return "".join(self._pieces)
            position = max(hit.end(), self._copied, self._look_at(hit[0], *hit.span()))
        self._pieces.append(text[self._copied : position])
        return "".join(self._pieces)

    def _look_at(self, hint: str, start: int, end: int) -> int:
        """Mask the secret that a hint announces, if it does; returns where to go on."""
        text = self._text
        if hint in _NAME_HINTS:
            return self._look_at_name(start, end)
        if hint == " -":
            return self._look_at_option(start + 1) if self._options else end
        if hint == "://":
            return self._look_at_url(end)
        if hint in _PROGRAM_HINTS:
            if (call := _NAMELESS_SECRET.match(text, start)) is not None:
                return self._mask_value(call.end())
            if (word := _WORD.match(text, start)) is not None:
                self._options = _OPTIONS.get(word[0], self._options)
        elif hint == "<<<":
            if _READS_SECRET.search(text, max(0, start - 80), start):
                return self._mask_value(end + (text[end : end + 1] == " "))
        elif hint in ("echo", "printf"):
            if (piped := _PIPED_SECRET.match(text, start)) is not None:
                value_start = piped.start("value")
                return self._mask(value_start, value_start + len(piped["value"].rstrip()))
        elif hint == "send":
            sent = _SENT.match(text, start)
            if sent is not None and _ASKS_FOR_PASSWORD.search(text, max(0, start - 60), start):
                return self._mask(*sent.span("value"))
        elif hint == "identified by ":
            return self._mask_value(end) if text[end : end + 1] in _QUOTES else end
        elif hint == "-----begin":
            if (block := _PRIVATE_KEY.match(text, start)) is not None:
                closing = text.find("-----END", block.end())
                return self._mask(block.end(), len(text) if closing < 0 else closing)
        elif (token := _TOKEN.match(text, start)) is not None:
            return self._mask(*token.span()) if _DIGIT.search(token[0]) else token.end()
        return end

    def _look_at_name(self, start: int, end: int) -> int:
        """Look at a word that holds a part such as `token`: does a value follow that it names?"""
        text = self._text
        before = text[max(self._copied, start - _MAX_NAME_CHARS) : start]
        start -= len(before) - len(before.rstrip(_NAME_CHARS))
        name_end = _REST_OF_NAME.match(text, end).end()  # type: ignore[union-attr]
        name = text[start:name_end]
        if name in _OPTIONS:  # sshpass
            self._options = _OPTIONS[name]
            return name_end
        if (call := _NAMELESS_SECRET.match(text, start)) is not None:
            return self._mask_value(call.end())
        if (separator := _SEPARATOR.match(text, name_end)) is not None:
            if not _is_secret_name(name, in_query=text[start - 1 : start] in _QUERY_MARKS):
                return name_end
            if name == "PASS" and separator[0].startswith(":"):
                return name_end  # the verdict of a test
            if separator[0].startswith(":") and self._is_header(name, start, separator):
                is_escaped = separator[0].endswith("\\ ")
                value = _ESCAPED_HEADER_VALUE if is_escaped else _HEADER_VALUE
                return self._mask_header(separator.end(), value)
            if separator[0] == ":" and text[start - 1 : start] == "/":
                return name_end  # a target such as `//src/auth:test`
            pair = _PAIR_OF_STRINGS.match(text, separator.end())
            return self._mask_value(separator.end() if pair is None else pair.end())
        if (comma := _COMMA.match(text, name_end)) is not None:
            sets_name = _SETS_NAME.search(text, max(0, start - 40), start)
            return (
                self._mask_value(comma.end()) if sets_name and _is_secret_name(name) else name_end
            )
        gap = _GAP.match(text, name_end)
        if gap is None or not _is_secret_name(name):
            return name_end
        if name.lower() == "bearer":
            credentials = _CREDENTIALS.match(text, gap.end())
            return name_end if credentials is None else self._mask(*credentials.span())
        is_option = name[:1] == "-" and not _SWITCH.match(name)
        opens_string = text[gap.end() : gap.end() + 1] in _QUOTES
        if is_option or _TAKES_NAME_AND_VALUE.search(text, max(0, start - 40), start):
            return self._mask_value(gap.end())
        if name.lower() in _PASSWORDS:
            is_value = _PASSWORD.match(text, gap.end()) is not None
            is_value &= _OPENS_VALUE.search(text, max(0, start - 40), start) is not None
            if opens_string or is_value:
                return self._mask_value(gap.end())
        return name_end

    def _look_at_url(self, start: int) -> int:
        """Mask the password in `://user:password@`, or a token in the place of the user."""
        found = _USER_INFO.match(self._text, start)
        if found is None:
            return start
        user, colon, _ = found["user"].partition(":")
        if colon:
            return self._mask(start + len(user) + 1, found.end("user"))
        return self._mask(start, found.end("user")) if len(user) >= 20 else found.end()

    def _look_at_option(self, start: int) -> int:
        """Mask the value of a short option of the program that was named last."""
        found = _OPTION.match(self._text, start)
        if found is None:
            return start + 2
        letters, long, gap = found.group("letters", "long", "gap")
        kind, value_start = self._options.get(long or letters[-1]), found.end()
        if letters and (kind in (None, "attached") or not gap):
            kind, value_start = self._options.get(letters[0]), start + 2
        if kind is None:
            return start + 2
        return self._mask_value(value_start, after=kind if kind in _SIGNS else "")

    def _is_header(self, name: str, start: int, separator: re.Match[str]) -> bool:
        """True if the value goes on to the end of its line or string: of a header, in YAML."""
        text = self._text
        if text[separator.end() : separator.end() + 1] in _QUOTES:
            return False
        has_blank = len(separator[0]) > 1
        if _HEADER.fullmatch(name):
            return has_blank or text[start - 1 : start] in _QUOTES
        line = text.rfind("\n", max(0, start - _MAX_NAME_CHARS), start)
        return has_blank and line >= 0 and not text[line:start].strip()

    def _mask_header(self, start: int, form: re.Pattern[str]) -> int:
        """Mask what follows the name of a header, up to the end of its line, string or word, and
        what is glued to that string."""
        text = self._text
        value = form.match(text, start)
        if value is None:
            return start
        if _REFERENCE.match(text, value.start("value")):
            return value.start("value")
        end = value.end()
        if not _is_harmless(value["value"]):
            self._mask(*value.span("value"))
        if text[end : end + 1] not in _QUOTES:
            return end
        return self._mask(end + 1, _end_of_word(text, end + 1))

    def _mask_value(self, start: int, *, after: str = "") -> int:
        """Mask a value, in quotes or without, unless it is a reference or a plain word of code.

        after: mask only what follows this sign in it, nothing if it has none.
        """
        text = self._text
        opening = _OPENING.match(text, start)
        if opening is not None:
            start, quote = opening.end(), opening["quote"]
            if not text[start : start + 1].strip(_CLOSES_STRING):
                return start  # a closing quote: `grep "token=" file`
            if (reference := _REFERENCE.match(text, start)) is not None:
                return reference.end()
            end = _end_of_string(text, start, quote)
        else:
            if (reference := _REFERENCE.match(text, start)) is not None:
                return reference.end()
            end = _PLAIN.match(text, start).end()  # type: ignore[union-attr]
            if text[end : end + 1] in ("(", "["):
                return end  # a call or an element: `token = read_token()`
        if after:
            sign = text.find(after, start, end)
            if sign < 0:
                return end
            start = sign + 1
        if _is_harmless(text[start:end]):
            return end
        if opening is None:
            return self._mask(start, _end_of_word(text, end))
        self._mask(start, end)
        closed = end + len(quote)
        return self._mask(closed, _end_of_word(text, closed))

    def _mask(self, start: int, end: int) -> int:
        if end > start >= self._copied:
            self._pieces += (self._text[self._copied : start], MASK)
            self._copied = end
        return end


def _end_of_string(text: str, start: int, quote: str) -> int:
    """Where the string ends that began with `quote`, which may be an escaped one."""
    end = text.find(quote, start)
    while end > start and len(quote) == 1 and text[end - 1] == "\\" and quote == '"':
        end = text.find(quote, end + 1)
    return len(text) if end < 0 else end


def _end_of_word(text: str, position: int) -> int:
    """Where the shell's word ends that goes on here, after a string or before one."""
    return _GLUED.match(text, position).end()  # type: ignore[union-attr]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Names

_MAX_NAME_CHARS = 64
_NAME_CHARS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_REST_OF_NAME = re.compile(r"[A-Za-z0-9_.-]{0,64}+")
_NAME_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SECRET_PARTS = _words(
    "password passwd passphrase passcode pwd secret secrets token apikey accesskey secretkey"
    " privatekey authtoken accesstoken auth authorization credential credentials cred creds cookie"
    " jwt bearer storepass keypass sshpass dbpass userpass userpwd"
)
_SECRET_ENDINGS = ("password", "passwd", "passphrase", "secret", "token", "apikey")
_KINDS_OF_KEY = _words(
    "api secret access private encryption signing master subscription account storage shared auth"
    " client license deploy service functions session webhook hmac jwt app application openai"
    " anthropic admin"
)
_HARMLESS_KEYS = _words(
    "primary foreign sort cache partition public group index map dict row registry routing object"
    " order unique lookup host hot pub sub idempotency"
)
# What a name says last: these are about a secret, they are none.
_ABOUT_SECRETS = _words(
    "file files filename path dir directory folder url uri endpoint host port name names type kind"
    " method mode timeout ttl expiry expires length len size count limit enabled enable disabled"
    " required user username store manager provider service server backend module class policy"
    " version command cmd helper format env arn algorithm alg field header headers prefix suffix"
    " index idx ids stdin prompt dict budget scheme py js ts go rs rb java sh md json yaml yml toml"
    " txt lock cfg conf log html css test tests spec info status check usage callback handler func"
    " function request response error email sock socket plugin plugins model"
)
# Tokens of language models and parsers, not of users.
_TEXT_TOKENS = _words(
    "pad eos bos unk cls sep mask stop special start end next max min num per new first last prev"
    " current image video audio text word sub"
)
_QUERY_MARKS = frozenset("?&")
_HEADER = re.compile(r"x-.*|.*(?:authorization|cookie)", re.IGNORECASE)
_PASSWORDS = frozenset(("password", "passphrase"))
_SWITCH = re.compile(r"--?(?:no|skip|disable|without|with|use|enable|has|is|require|check|show)-")


@lru_cache(maxsize=4096)
def _is_secret_name(name: str, *, in_query: bool = False) -> bool:
    """True if a value of that name is a secret, by the parts of the name."""
    parts: list[str] = [part.lower() for part in _NAME_PARTS.findall(name)]
    if not parts or parts[-1] in _ABOUT_SECRETS or name in ("PWD", "OLDPWD"):
        return False
    if parts[-1] == "id" and name[:1] == "-":
        return False  # `--secret-id prod/db` says which secret
    if in_query and (parts == ["key"] or parts[-1] in ("sig", "signature")):
        return True
    for before, part in zip(["", *parts], parts, strict=False):
        if part == "key":
            is_env_name = name.isupper() and before != "" and before not in _HARMLESS_KEYS
            if before in _KINDS_OF_KEY or is_env_name or name[:2] in ("x-", "X-"):
                return True
        elif part == "pass":
            return parts[-1] == "pass"
        elif part in _SECRET_PARTS or part.endswith(_SECRET_ENDINGS):
            return part != "token" or before not in _TEXT_TOKENS
    return False


# Between a name and its value

_SEPARATOR = re.compile(
    r"""(?:\\{0,3}["'])?+ (?: \] | \}(?=[ ]?=) )?+ [ \t]{0,4}+
    (?: =>? (?!=) | [:+?]=
      | : [ ]?+ (?:str|string|String|bytes|SecretStr) [ ]{0,2}+ = (?!=)
      | : (?!:) )
    (?:[ \t] | \\[ ]){0,4}+""",
    re.VERBOSE,
)
_GAP = re.compile(r"[ \t]{1,8}+(?:-[vV]alue[ \t]{1,8}+)?+(?![-|&;<>])")
_COMMA = re.compile(r"""\\{0,3}["'][ ]?,[ ]?(?=\\{0,3}["'])""")
_SETS_NAME = re.compile(
    r"""\b(?: setdefault | putenv | setenv | SetEnvironmentVariable | ENV\.store
      | (?:set|add)(?:Request)?Header | [hH]eaders\.(?:set|add|append) )[ ]?\([ ]?\\{0,3}["']$""",
    re.VERBOSE,
)
# `-c "password x9"`: an option takes both; so may a line, as in a router's console. Words without a
# digit are mostly prose.
_OPENS_VALUE = re.compile(r"""(?:^|\s)--?[A-Za-z][\w-]{0,24}+[ =]["']?$|(?:^|\n)[ \t]*+$""")
_PASSWORD = re.compile(r"""(?=[^\s"']{0,64}[0-9])[^\s"'/]{4,64}+(?=["']|[ \t]*+(?:\n|\Z))""")
_TAKES_NAME_AND_VALUE = re.compile(
    r"""\b(?: set(?:env|x)?[ \t]++(?:-\w{1,4}[ \t]++){0,3}+ (?:\S{1,30}:)?
      | login[ \t]++\S{1,24}+\s++ | (?:mysqladmin|redis-cli|rclone|nmcli|ipmitool)\b[^;|&\n]{1,30}
      | (?i:(?:set|new)-item|si)[ \t]++(?i:-path[ \t]++)?+(?i:env):\\?
      | (?:config|ngrok)[ \t]++(?:--\w{1,9}[ \t]++)?+(?:add-)?+ )$""",
    re.VERBOSE,
)

# Values

_QUOTES = frozenset(("'", '"'))
_MAX_HARMLESS_CHARS = 400
_CLOSES_STRING = " \t\r\n)|;,'\"]}"
_OPENING = re.compile(r"""[$bfr]?(?P<quote>\\{0,3}["'])""")
# What the shell joins to a string or a word: `"se"'cret'`, `se"cret"`, `'it'\\''s'`. A string with
# blanks in it is none, since the quote may as well close one that holds all of the command.
_GLUED = re.compile(
    r"""(?: "(?=[\w$+@#%^*-])[^"\s]{0,256}+" | '(?=[\w$+@#%^*-])[^'\s]{0,256}+'
      | \\['"] (?=['"\w]) | (?<=["'])\w[\w+/=.@%-]*+ )*+""",
    re.VERBOSE,
)
_PLAIN = re.compile(r"""(?:\\[^"'\snrt]|[^\s'"`;&|<>()\[\]\\])*+""")
_SCHEME = "(?i:bearer|basic|token|digest|negotiate|apikey|api-key|splunk|aws4-hmac-sha256)"
_HEADER_VALUE = re.compile(rf"""(?:{_SCHEME}[ ]++)?+(?P<value>[^'"`\\\r\n]*+)""")
# A word of the shell whose blanks are escaped, with strings glued to it.
_ESCAPED_HEADER_VALUE = re.compile(
    rf"""(?:{_SCHEME}(?:\\[ ])++)?+
    (?P<value>(?:\\. | "[^"\s]*+" | '[^'\s]*+' | [^\s'"`;&|<>()\\])++)""",
    re.VERBOSE,
)
# What stands for a secret: `$TOKEN`, `$(cat file)`, `{token}`, `<your-token>`; also `.*` and `%s`.
# A default as in `${TOKEN:-secret}` may be one.
_REFERENCE = re.compile(r"\$(?:(?:\{\w*+\}|\w++)(?![~!@#%^*+=?-])|\()|\{|<|\.\*|%\w\b")
_HARMLESS = re.compile(
    r"""(?: \*+ | \.+ | true|false|none|null|nil|undefined|yes|no|on|off
      | str|string|bytes|int|bool|any
      | (?:os|self|cls|args|config|settings|process|env|secrets|req|request|this|options)\.[\w.]++
      | (?:~|\.{1,2})?(?:/[\w.@-]++)++/?
      | [\w./-]{0,200}\.(?:pem|key|json|crt|cer|p12|pfx|txt|ya?ml|env|jks|pub|asc|gpg)
      | (?:id|type)=.*+ | REDACTED.*+ )""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)


def _is_harmless(value: str) -> bool:
    """True if the form of a value is that of a path, a switch, a type or a count."""
    value = value.strip().rstrip(",;:)]}")
    if value.isdecimal() or not value:
        return len(value) < 4
    return bool(_HARMLESS.fullmatch(value[:_MAX_HARMLESS_CHARS]))


_USER_INFO = re.compile(r"""(?P<user>[^\s/?#'"`<>\\]{1,512})@""")
_DIGIT = re.compile(r"[0-9]")

# Options of programs: what each takes is the secret ("value"; "attached": only without a blank, as
# in `mysql -psecret`), or the secret stands in it after this sign.

_SIGNS = ":%,="
_NO_SECRET_OPTIONS = _words("docker podman kubectl sudo ssh rsync tar git python grep")
_TAKE_P = _words("sshpass login mongo mongosh mongodump twine poetry snowsql")
_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "curl": {"u": ":", "U": ":", "-user": ":", "-proxy-user": ":", "b": "="},
    **{name: {"a": ":"} for name in ("http", "https", "xh")},
    **{
        name: {"p": "attached"} for name in ("mysql", "mysqldump", "mysqladmin", "mariadb", "mycli")
    },
    **{name: {"p": "attached"} for name in ("7z", "7za", "7zr")},
    **{name: {"p": "value"} for name in _TAKE_P},
    "redis-cli": {"a": "value"},
    **{name: {"P": "value"} for name in ("zip", "unzip", "sqlcmd")},
    "ssh-keygen": {"N": "value", "P": "value"},
    **{name: {"w": "value"} for name in ("ldapsearch", "ldapadd", "ldapmodify", "ldapwhoami")},
    **{name: {"U": "%"} for name in ("smbclient", "rpcclient")},
    "lftp": {"u": ","},
    **{name: {} for name in _NO_SECRET_OPTIONS},
}
_OPTION = re.compile(
    r"-(?:(?P<letters>[A-Za-z0-9]{1,8})|(?P<long>-[a-z-]{1,16}))(?P<gap>[ \t=]{0,8})"
)
# Secrets that nothing but their place tells: `vault login SECRET`, `htpasswd -b FILE USER SECRET`.
_NAMELESS_SECRET = re.compile(
    r"(?:vault|wandb)[ \t]++login[ \t]++(?!-)"
    r"|(?i:convertto-securestring)[ \t]++(?i:-string[ \t]++)?+(?!-)"
    r"|htpasswd[ \t]++-\w{0,4}b\w{0,4}[ \t]++\S{1,200}+[ \t]++\S{1,64}+[ \t]++"
)
_READS_SECRET = re.compile(
    r"(?:\bsudo\b[^;|&\n]{0,40}[ ]-S\b|chpasswd|\bkinit\b|--password-stdin|--with-token)"
    r"[^;|&\n]{0,40}$"
)
_PAIR_OF_STRINGS = re.compile(r"""\([ ]?(?P<quote>["'])[^"'\n]{0,128}+(?P=quote)[ ]?,[ ]?""")
# expect and pexpect: what is sent right after a prompt for a password.
_ASKS_FOR_PASSWORD = re.compile(
    r"""(?i:assword|assphrase)[^\n"']{0,12}["']?[\s{};:)\\]{0,12}+(?:\w{1,12}\.)?$"""
)
_SENT = re.compile(
    r"""send(?:line)?[ \t(]++(?:--?\w*+[ \t]++)?+\\{0,3}["']?
    (?P<value>[^\s"'$\\(){}\[\]][^\n"'\\)}]{0,200})""",
    re.VERBOSE,
)
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_PIPED_SECRET = re.compile(
    r"""(?:echo|printf)[ \t]++(?:-[neE]++[ \t]++|(?P<form>["']?)%s(?:\\n)?(?P=form)[ \t]++)?+
    (?P<quote>["']?)(?P<value>[^"'`|\n$]{1,256}+)(?P=quote)[ \t]*+\|[ \t]*+
    (?: sudo\b[^|;&\n]{0,60}?[ ]-S\b | chpasswd | passwd\b | kinit\b
      | [^|;&\n]{0,120}?--(?:password-stdin|with-token) )""",
    re.VERBOSE,
)

# Tokens by their form

_TOKEN = re.compile(
    r"""(?<![A-Za-z0-9_])(?:
      (?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Za-z])
    | AIza[\w-]{30,}+
    | eyJ[\w-]{8,}+\.[\w-]{8,}+(?:\.[\w-]*+)?+
    | SG\.[\w-]{16,}+\.[\w-]{16,}+
    | ya29\.[\w.-]{20,}+
    | (?:npm_|hf_|r8_|gsk_)[A-Za-z0-9]{20,}+
    | (?:hooks\.slack\.com/services|discord(?:app)?\.com/api/webhooks)/[\w/-]{20,}+
    | (?:gh[pousr]_|github_pat_|glpat-|sk-|[sr]k_(?:live|test)_|xox[abeprs]-|pypi-|dckr_pat_|dop_v1_
        |shp(?:at|ss)_|glsa_|nvapi-|xai-|pplx-|lin_api_|tskey-|whsec_)[A-Za-z0-9_-]{16,}+
    | bot[0-9]{8,11}:[\w-]{30,}+
    | AGE-SECRET-KEY-[0-9A-Z]{20,}+
    )""",
    re.VERBOSE,
)
_CREDENTIALS = re.compile(r"(?=[^\s'\"]{0,40}[0-9])[\w.~+/=-]{12,}+")
_LONG_RUN = re.compile(r"(?<![A-Za-z0-9_-])[A-Za-z0-9_-]{32,}+")
_CHANGES = re.compile(r"(?<=[a-z])[^a-z]|(?<=[A-Z])[^A-Z]|(?<=[0-9])[^0-9]")
_DIGITS = re.compile(r"[0-9]++")


def _mask_random_runs(text: str) -> str:
    """Mask long runs in which small letters, capitals and digits alternate as by chance.

    Hashes have no capitals, and names in camel case have whole words.
    """
    return _LONG_RUN.sub(lambda run: MASK if _is_random(run[0]) else run[0], text)


def _is_random(run: str) -> bool:
    run = run[:100]
    if run.islower() or run.isupper() or len(_DIGITS.findall(run)) < 3:
        return False
    return len(_CHANGES.findall(run)) >= 0.42 * len(run)


# What announces a secret, in lower case. Only literals: a search then skips most letters in C.

_NAME_HINTS = _words("pass pwd secret token key auth cred cookie jwt bearer signature sig=")
_PROGRAM_HINTS = _words(
    "curl http xh mysql mariadb mycli 7z login mongo redis-cli zip unzip ldap smbclient"
    " rpcclient lftp docker podman kubectl sudo ssh rsync tar git python grep twine poetry snowsql"
    " sqlcmd vault wandb convertto-securestring"
)
_TOKEN_HINTS = _words(
    "akia asia aiza eyj sg. ya29. npm_ hf_ r8_ gsk_ hooks.slack.com discord.com discordapp.com"
    " ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- sk- sk_live_ sk_test_ rk_live_ rk_test_ xoxa-"
    " xoxb- xoxe- xoxp- xoxr- xoxs- pypi- dckr_pat_ dop_v1_ shpat_ shpss_ glsa_ nvapi- xai- pplx-"
    " lin_api_ tskey- whsec_ age-secret-key- bot"
)
_HINTS = {*_NAME_HINTS, *_PROGRAM_HINTS, *_TOKEN_HINTS}
_HINTS |= {" -", "://", "<<<", "echo", "printf", "send", "identified by ", "-----begin"}
# Of hints that begin alike the longest counts.
_HINT = re.compile("|".join(map(re.escape, sorted(_HINTS, reverse=True))))
_WORD = re.compile(r"(?<![\w.-])[\w-]{2,16}+(?![\w.:/])")
