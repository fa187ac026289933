/* bpe.h - byte pair encoding: tokens as byte strings, merges by rank
 *
 * Filled by the tokenizer's loader, then read by any number of threads, each with its own struct bpe_scratch. Tokens
 * are kept as raw bytes (the printable alphabet of byte-level files is undone at load), so nothing is mapped at run
 * time. Merging follows Hugging Face tokenizers: the adjacent pair of lowest rank, leftmost first, until none is left. A piece
 * begins as its bytes, or, where tokens are text, as its characters, and as bytes those of them that are no tokens.
 * */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "protocol/base/error.h"

#define BPE_IDS_MAX (1 << 22)    // largest vocabulary; the published ones have up to 262 144
#define BPE_TOKEN_MAX 65535      // bytes of one token

struct bpe_token {
    uint32_t at;     // first byte in bpe.bytes
    uint16_t len;    // bytes; 0: no such token
    bool raw;        // its text is outside the byte alphabet: encoding never produces it, and it decodes as it is
};
struct bpe_merge {
    uint64_t pair;    // left id << 32 | right id; UINT64_MAX: an empty slot
    uint32_t rank;    // place in the list of merges, lower first
    uint32_t id;      // what the two become
};
struct bpe_slot {
    uint32_t tag;    // high half of the hash
    uint32_t id1;    // id + 1; 0: empty
};
struct bpe {
    char *bytes;    // all tokens' bytes
    size_t n_bytes, cap_bytes;
    struct bpe_token *token;    // (n_id)
    int32_t n_id;               // largest id + 1
    int32_t n_token;
    struct bpe_slot *slot;    // hash of tokens by bytes, (slot_mask + 1)
    uint32_t slot_mask;
    struct bpe_merge *merge;    // hash of merges by pair, (merge_mask + 1)
    uint32_t merge_mask;
    uint32_t n_merge;
    _Atomic uint8_t *whole;    // (n_id) does merging a token's own bytes give the token? 0 not checked yet, 1 yes, 2 no
    int32_t byte_id[256];      // token of a single byte, -1: none
    uint64_t seed;             // of the hashes: a hostile file cannot aim for collisions
    bool ignore_merges;        // a piece that is a token needs no merging (Llama-3)
    bool text;                 // tokens are text, not bytes: a piece begins as characters
    bool byte_fallback;        // a character that is not a token begins as its bytes' tokens (fallback)
    int32_t fallback[256];     // token spelt <0x00> ... <0xFF>; -1: none
    int32_t unk;               // token of a character that has no other; -1: it is dropped
    bool fuse_unk;             // one for neighbouring ones
};
struct bpe_scratch {
    void *mem;    // working memory of the longest piece so far
    size_t mem_bytes;
};
/* Make room for n_id ids and a hash of n_token tokens and n_merge merges. */
MUST_USE bool bpe_init(struct bpe *b, int32_t n_id, int32_t n_token, uint32_t n_merge, struct error *err);
void bpe_release(struct bpe *b);
/* Add a token. ERR_DATA when the bytes or the id already exist. */
MUST_USE bool bpe_token_add(struct bpe *b, int32_t id, const void *bytes, size_t len, bool raw, struct error *err);
/* Add a merge; a pair named twice keeps the later rank, as in tokenizers. */
MUST_USE bool bpe_merge_add(struct bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id, struct error *err);
/* The token of these bytes, -1: none. */
int32_t bpe_find(const struct bpe *b, const void *bytes, size_t len, bool raw);
/* Hash of up to 16 bytes given as two words (zero after the end) and of any length; the same bytes give the same. */
uint64_t bpe_hash_words(uint64_t lo, uint64_t hi, size_t len, uint64_t seed);
uint64_t bpe_hash(const void *bytes, size_t len, uint64_t seed);
/* As bpe_find with the hash already known, for tokens that are not raw. */
int32_t bpe_find_hashed(const struct bpe *b, const void *bytes, size_t len, uint64_t hash);
/* Encode one piece of at most INT32_MAX bytes into out (room for len ids). Returns the ids written, -1: no memory. */
int64_t bpe_encode(const struct bpe *b, const uint8_t *piece, size_t len, uint64_t hash, int32_t *out, struct bpe_scratch *s);
/* The tokens of characters that are none, where tokens are text: their bytes' if each has one, or the unknown one. Returns the ids
 * written into out (room for len), -1: there is no unknown token. */
int64_t bpe_unknown(const struct bpe *b, const uint8_t *text, size_t len, int32_t *out);
/* Room for `need` bytes in s->mem, whose contents may be lost. False: no memory. */
MUST_USE bool bpe_scratch_room(struct bpe_scratch *s, size_t need);
void bpe_scratch_release(struct bpe_scratch *s);
