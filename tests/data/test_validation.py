import numpy as np

from megatron_mep.data.tokenizer import Tokenizer
from megatron_mep.data.validation import validation_tokens
from tests.data.toy import corpus, stories


def test_the_stream_is_the_whole_split_in_order(tmp_path):
    folder, manifest = corpus(tmp_path)
    tokens = validation_tokens(folder)
    assert isinstance(tokens, np.memmap)
    assert tokens.shape == (manifest.validation.num_tokens,)
    tokenizer = Tokenizer.load(folder / "tokenizer.model")
    ends = np.flatnonzero(tokens == manifest.end_of_document)
    texts = [tokenizer.decode(document) for document in np.split(tokens, ends + 1)[:-1]]
    assert len(texts) == manifest.validation.num_documents
    assert texts == [text for text in stories(200) if text in texts]


def test_bytes_of_the_stream_are_those_of_the_text(tmp_path):
    folder, manifest = corpus(tmp_path)
    tokens, tokenizer = validation_tokens(folder), Tokenizer.load(folder / "tokenizer.model")
    assert tokenizer.bytes_of(tokens) == manifest.validation.num_bytes
    for start in range(0, len(tokens) - 100, 97):
        piece = tokens[start : start + 100]
        # a cut within a letter that is spelt in bytes leaves half of it, which decodes to another letter
        if "\ufffd" not in (text := tokenizer.decode(piece)):
            assert tokenizer.bytes_of(piece) == len(text.encode())
