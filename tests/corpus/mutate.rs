//! Changes inputs as a seed says: bits, bytes, cuts, repeats, words, and parts of other inputs.

/// Bytes that parsers treat in some way of their own.
const ODD: &[u8] = b"\0\t\n\r \"#%&'*+,-./0:;<=>?@[\\]^_`{|}~\x7f\x80\xbf\xc0\xed\xff";
/// A mutation makes nothing longer than this.
const LONGEST: usize = 8 * 1_024;

pub(crate) struct Mutator(u64);

impl Mutator {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// One of `corpus`, changed in one to six ways, more often in few.
    pub(crate) fn mutated(&mut self, corpus: &[Vec<u8>], words: &[&str]) -> Vec<u8> {
        let mut input = self.pick(corpus).clone();
        let most = self.below(6);
        for _ in 0..=self.below(most + 1) {
            self.change(&mut input, corpus, words);
        }
        input.truncate(LONGEST);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>, corpus: &[Vec<u8>], words: &[&str]) {
        let at = self.below(input.len() + 1);
        let end = at + self.below((input.len() - at).min(32) + 1);
        match self.below(9) {
            0 if at < input.len() => input[at] ^= 1 << self.below(8),
            1 if at < input.len() => input[at] = *self.pick(ODD),
            2 if at < input.len() => input[at] = self.next() as u8,
            3 => input.insert(at, *self.pick(ODD)),
            4 => drop(input.drain(at..end)),
            5 => {
                let part = input[at..end].repeat(1 + self.below(4));
                input.splice(at..at, part);
            }
            6 => {
                let other = self.pick(corpus);
                let from = self.below(other.len() + 1);
                let to = from + self.below(other.len() - from + 1);
                input.splice(at..end, other[from..to].iter().copied());
            }
            _ if words.is_empty() => input.truncate(at),
            choice => {
                let word = self.pick(words).bytes();
                input.splice(at..if choice == 7 { at } else { end }, word);
            }
        }
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    /// SplitMix64: the same numbers on every machine.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}
