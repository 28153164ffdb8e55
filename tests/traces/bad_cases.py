"""Bad files by name: their content, and how the one sentence about each begins after the file's name."""

import gzip
import json

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
GOOD = "2023-11-16 18:17:03.9799600,4808,10\n"
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
BURST = "Timestamp,Request tokens,Response tokens\n"
MOON = '{"timestamp": 0, "input_length": 513, "output_length": 5, "hash_ids": [1, 2]}\n'
QWEN = (
    '{"chat_id": %s, "parent_chat_id": %s, "timestamp": 1, "input_length": 16, "output_length": 1, "hash_ids": [1]}\n'
)
RAG = '{"timestamp": "1", "input_length": 3, "output_length": 1, "session_id": "s", "hash_ids": %s}\n'


def moon(**changes: object) -> str:
    row = json.loads(MOON) | changes
    return json.dumps({k: v for k, v in row.items() if v is not ...}) + "\n"


CASES: dict[str, tuple[str | bytes, str]] = {
    # Lengths.
    "input 0": (
        AZURE + GOOD + GOOD.replace("4808", "0"),
        "line 3, column ContextTokens: '0' is not a whole number of at least 1",
    ),
    "negative length": (
        VIDUR + "0,-1,5\n",
        "line 2, column num_prefill_tokens: '-1' is not a whole number of at least 1",
    ),
    "output 0": (VIDUR + "0,5,0\n", "line 2, column num_decode_tokens: '0' is not a whole number of at least 1"),
    "abc": (VIDUR + "0,abc,5\n", "line 2, column num_prefill_tokens: 'abc' is not a whole number of at least 1"),
    "NaN length": (VIDUR + "0,NaN,5\n", "line 2, column num_prefill_tokens: 'NaN' is not a whole number of at least 1"),
    "fraction": (VIDUR + "0,12.5,5\n", "line 2, column num_prefill_tokens: '12.5' is not a whole number of at least 1"),
    "huge": (
        VIDUR + f"0,{2**31 + 1},5\n",
        "line 2, column num_prefill_tokens: '2147483649' is larger than 2,147,483,648, the most that is allowed",
    ),
    "very huge": (
        VIDUR + f"0,{10**30},5\n",
        f"line 2, column num_prefill_tokens: '{10**30}' is larger than 2,147,483,648, the most that is allowed",
    ),
    "no length": (
        VIDUR + "0,,5\n",
        "line 2, column num_prefill_tokens: the value is missing; a whole number of at least 1 is needed",
    ),
    "json length 0": (
        MOON + moon(output_length=0),
        "line 2, column output_length: 0 is not a whole number of at least 1",
    ),
    "json NaN length": (
        MOON + moon(input_length=float("nan")),
        "line 2, column input_length: NaN is not a whole number of at least 1",
    ),
    "json null length": (
        MOON + moon(input_length=None),
        "line 2, column input_length: the value is missing; a whole number of at least 1 is needed",
    ),
    "json no length": (
        MOON + moon(input_length=...),
        "line 2, column input_length: the key is missing; a whole number of at least 1 is needed",
    ),
    "json true": (
        MOON + moon(input_length=True),
        "line 2, column input_length: true is not a whole number of at least 1",
    ),
    "json list": (
        MOON + moon(input_length=[5]),
        "line 2, column input_length: [5] is not a whole number of at least 1",
    ),
    "json huge": (
        MOON + moon(output_length=10**400),
        f"line 2, column output_length: {'1' + '0' * 36}... is larger than 2,147,483,648, the most that is allowed",
    ),
    # Times.
    "no date": (
        AZURE + "yesterday,5,5\n",
        "line 2, column TIMESTAMP: 'yesterday' is not a date and time like 2023-11-16 18:17:03.9799600, "
        "from 1970 to 2115",
    ),
    "empty date": (
        AZURE + ",5,5\n",
        "line 2, column TIMESTAMP: the value is missing; a date and time like 2023-11-16 18:17:03.9799600, "
        "from 1970 to 2115 is needed",
    ),
    "no time": (VIDUR + "soon,5,5\n", "line 2, column arrived_at: 'soon' is not a number of seconds"),
    "NaN time": (VIDUR + "nan,5,5\n", "line 2, column arrived_at: 'nan' is not a number of seconds"),
    "infinite time": (VIDUR + "inf,5,5\n", "line 2, column arrived_at: 'inf' is not a number of seconds"),
    "empty time": (VIDUR + ",5,5\n", "line 2, column arrived_at: the value is missing; a number of seconds is needed"),
    "arrival -5": (VIDUR + "-5,5,5\n", "line 2, column arrived_at: '-5' is negative; times start at 0"),
    "time too large": (VIDUR + "1e15,5,5\n", "line 2, column arrived_at: '1e15' is too large for a number of seconds"),
    "some epoch ms": (
        VIDUR + "1,5,5\n1700000000000,5,5\n",
        "line 3, column arrived_at: '1700000000000' is too large for a number of seconds "
        "(milliseconds since 1970? Other rows are in seconds)",
    ),
    "json negative time": (MOON + moon(timestamp=-1), "line 2, column timestamp: -1 is negative; times start at 0"),
    "json NaN time": (
        MOON + moon(timestamp=float("nan")),
        "line 2, column timestamp: NaN is not a number of milliseconds",
    ),
    "json infinite time": (
        MOON + moon(timestamp=float("inf")),
        "line 2, column timestamp: infinity is not a number of milliseconds",
    ),
    "json time true": (MOON + moon(timestamp=True), "line 2, column timestamp: true is not a number of milliseconds"),
    "json microseconds": (
        MOON + moon(timestamp=17 * 10**14),
        "line 2, column timestamp: 1700000000000000 is too large for a number of milliseconds",
    ),
    # Content and names.
    "too many ids": (
        MOON + moon(hash_ids=[1, 2, 3]),
        "line 2, column hash_ids: there are 3 hash ids, but 513 tokens make 2 blocks of 512",
    ),
    "too few ids": (
        MOON + moon(input_length=2000),
        "line 2, column hash_ids: there are 2 hash ids, but 2,000 tokens make 4 blocks of 512",
    ),
    "no id list": (MOON + moon(hash_ids=5), "line 2, column hash_ids: 5 is not a list of whole numbers"),
    "ids of text": (
        MOON + moon(hash_ids=["a", "b"]),
        'line 2, column hash_ids: ["a", "b"] is not a list of whole numbers',
    ),
    "no ids": (MOON + moon(hash_ids=...), "line 2, column hash_ids: the key is missing"),
    "unknown component": (
        RAG % '{"sys_prompt": [1]}' + RAG % '{"prompt": [1]}',
        'line 2, column hash_ids: {"prompt": [1]} is not an object of lists with the keys '
        "sys_prompt, passages_ids, history, web_search, user_input",
    ),
    "more components than tokens": (
        RAG % '{"sys_prompt": [1, 2, 3, 4]}',
        "line 1, column hash_ids: there are 4 content ids for a prompt of 3 tokens",
    ),
    "half a character": (
        RAG.replace('"s"', r'"\ud800"') % '{"sys_prompt": [1]}',
        r"line 1, column session_id: '\ud800' is not a name",
    ),
    "one id twice": (
        QWEN % (5, -1) + QWEN % (6, -1) + QWEN % (5, -1),
        "line 3, column chat_id: 5 is the id of the request on line 1 already",
    ),
    "parents in a circle": (
        QWEN % (5, 6) + QWEN % (6, 5),
        "line 1, column parent_chat_id: the parents of chat 5 go round in a circle",
    ),
    "a parent that is none": (
        QWEN % (5, -7),
        "line 1, column parent_chat_id: the parent must be a chat_id, or -1 for none",
    ),
    # Columns.
    "only a header": (AZURE, "the file has a header but no requests"),
    "unknown columns": (
        "time,tokens_in,tokens_out\n1,2,3\n",
        "line 1: no trace format has the columns time, tokens_in, tokens_out; the nearest is azure, which needs "
        "TIMESTAMP, ContextTokens, GeneratedTokens (missing: TIMESTAMP, ContextTokens, GeneratedTokens)",
    ),
    "wrong case": (
        AZURE.lower() + GOOD,
        "line 1: no trace format has the columns timestamp, contexttokens, generatedtokens; the nearest is azure, "
        "which needs TIMESTAMP, ContextTokens, GeneratedTokens (missing: TIMESTAMP, ContextTokens, GeneratedTokens)",
    ),
    "a misspelt arrival": (
        VIDUR.replace("arrived_at", "arived_at") + "0,5,5\n",
        "line 1: no trace format has the columns arived_at, num_prefill_tokens, num_decode_tokens; the nearest is "
        "sharegpt, which needs num_prefill_tokens, num_decode_tokens and allows num_total_tokens, pd_ratio",
    ),
    "a misspelt optional column": (
        MOON.replace("hash_ids", "hash_id"),
        "line 1: format timed-trace has no column hash_id; did you mean hash_ids?",
    ),
    "json columns": (
        '{"prompt": "hi", "max_tokens": 5}\n',
        "line 1: no trace format has the columns prompt, max_tokens; the nearest is timed-trace, which needs "
        "timestamp, input_length, output_length (missing: timestamp, input_length, output_length)",
    ),
    "a column twice": (
        "arrived_at,arrived_at\n",
        "line 1, column arrived_at: the header has the column arrived_at twice",
    ),
    "a column without a name": ("arrived_at,\n", "line 1: column 2 has no name in the header"),
    "too few values": (
        VIDUR + "0,5,5\n1,5\n",
        "line 3: there are 2 values, the header names 3 columns (arrived_at, num_prefill_tokens, num_decode_tokens)",
    ),
    "too many values": (
        VIDUR + "0,5,5,\n",
        "line 2: there are 4 values, the header names 3 columns (arrived_at, num_prefill_tokens, num_decode_tokens)",
    ),
    "an open quote": (VIDUR + '0,5,5\n0,"5,5\n', "line 3: the quotes do not match (unexpected end of data)"),
    "all failed": (
        BURST + "1,5,0\n2,6,0\n",
        "column Response tokens: every request has 0 response tokens, so all of them failed",
    ),
    # JSON.
    "truncated": (MOON + MOON[:50], "line 2: the JSON object breaks off in the middle; the file is probably cut off"),
    "broken in the middle": (
        MOON + MOON[:50] + "\n" + MOON,
        "line 2: the line is not JSON (Unterminated string starting at character 39)",
    ),
    "a JSON object": (
        '{\n "requests": [1]\n}\n',
        "the file is one JSON object; one JSON object per line is needed, one for each request",
    ),
    "a JSON object on one line": (
        '{"requests": [{"input_length": 5}]}',
        "the file is one JSON object; one JSON object per line is needed, one for each request",
    ),
    "a JSON array": (
        "[" + MOON.strip() + "]",
        "the file is one JSON array; one JSON object per line is needed, one for each request",
    ),
    "a key per line": (
        "".join(f'{{"key-{i}": {i}}}\n' for i in range(1_001)),
        "the objects have 1,001 different keys; requests share a few",
    ),
    "a number": (MOON + "5\n", "line 2: the line holds a number; a JSON object is needed"),
    "deep nesting": (
        MOON + "[" * 100_000,
        "line 2: the line is not JSON that can be read (maximum recursion depth exceeded",
    ),
    # No text.
    "empty": ("", "the file is empty; a trace has at least one request"),
    "blank": ("\n \n\r\n", "the file is empty; a trace has at least one request"),
    "binary": (
        AZURE.encode() + b"\0\1\2",
        "line 2: the file is binary (it has zero bytes); a trace is CSV, JSON lines or Parquet",
    ),
    "latin-1": (
        AZURE.encode() + b"caf\xe9,1,1\n",
        "line 2: byte 0xe9 is not UTF-8 text; a trace is CSV, JSON lines or Parquet",
    ),
    "utf-16": (AZURE.encode("utf-16"), "the file is UTF-16 text, which is not read; save it as UTF-8"),
    "gzip": (
        gzip.compress(AZURE.encode()),
        "the file is compressed with gzip, which is not read; unpack it first (gunzip)",
    ),
    "cut off parquet": (b"PAR1" + b"\0" * 40, "the Parquet file is damaged ("),
}
