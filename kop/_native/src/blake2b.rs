//! BLAKE2b without a key, as RFC 7693 says and Python's hashlib has it.

const BLOCK: usize = 128;
const IV: [u64; 8] = [
    0x6a09_e667_f3bc_c908,
    0xbb67_ae85_84ca_a73b,
    0x3c6e_f372_fe94_f82b,
    0xa54f_f53a_5f1d_36f1,
    0x510e_527f_ade6_82d1,
    0x9b05_688c_2b3e_6c1f,
    0x1f83_d9ab_fb41_bd6b,
    0x5be0_cd19_137e_2179,
];
const SIGMA: [[usize; 16]; 10] = [
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
    [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
    [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
    [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
    [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
    [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
    [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
    [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
    [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
    [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
];
/// The columns and then the diagonals of the state.
const MIXED: [[usize; 4]; 8] = [
    [0, 4, 8, 12],
    [1, 5, 9, 13],
    [2, 6, 10, 14],
    [3, 7, 11, 15],
    [0, 5, 10, 15],
    [1, 6, 11, 12],
    [2, 7, 8, 13],
    [3, 4, 9, 14],
];

pub struct Blake2b {
    state: [u64; 8],
    block: [u8; BLOCK],
    held: usize,
    before: u128,
}

impl Blake2b {
    /// A hash of `size` bytes, 64 at most.
    pub fn new(size: u8) -> Self {
        let mut state = IV;
        state[0] ^= 0x0101_0000 ^ u64::from(size);
        Blake2b { state, block: [0; BLOCK], held: 0, before: 0 }
    }

    pub fn update(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            if self.held == BLOCK {
                self.compress(false);
                self.held = 0;
            }
            let (now, later) = data.split_at(data.len().min(BLOCK - self.held));
            self.block[self.held..self.held + now.len()].copy_from_slice(now);
            self.held += now.len();
            data = later;
        }
    }

    /// The hash, and bytes behind it that are not a part of it.
    pub fn finish(mut self) -> [u8; 64] {
        self.block[self.held..].fill(0);
        self.compress(true);
        let mut out = [0; 64];
        for (bytes, word) in out.chunks_exact_mut(8).zip(self.state) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    fn compress(&mut self, last: bool) {
        self.before += self.held as u128;
        let mut words = [0u64; 16];
        for (word, bytes) in words.iter_mut().zip(self.block.chunks_exact(8)) {
            *word = bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
        }
        let mut v = [0u64; 16];
        v[..8].copy_from_slice(&self.state);
        v[8..].copy_from_slice(&IV);
        v[12] ^= self.before as u64;
        v[13] ^= (self.before >> 64) as u64;
        if last {
            v[14] = !v[14];
        }
        for round in 0..12 {
            let sigma = &SIGMA[round % 10];
            for (at, [a, b, c, d]) in MIXED.into_iter().enumerate() {
                v[a] = v[a].wrapping_add(v[b]).wrapping_add(words[sigma[2 * at]]);
                v[d] = (v[d] ^ v[a]).rotate_right(32);
                v[c] = v[c].wrapping_add(v[d]);
                v[b] = (v[b] ^ v[c]).rotate_right(24);
                v[a] = v[a].wrapping_add(v[b]).wrapping_add(words[sigma[2 * at + 1]]);
                v[d] = (v[d] ^ v[a]).rotate_right(16);
                v[c] = v[c].wrapping_add(v[d]);
                v[b] = (v[b] ^ v[c]).rotate_right(63);
            }
        }
        for (at, word) in self.state.iter_mut().enumerate() {
            *word ^= v[at] ^ v[at + 8];
        }
    }
}
