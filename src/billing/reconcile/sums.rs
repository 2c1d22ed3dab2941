//! Looks for the choices of priced things that make a sum.

/// Combinations that are tried.
const MOST_TRIES: u32 = 100_000;

/// How many choices make a sum between two bounds, both excluded.
pub(super) enum Sums {
    None,
    One(Vec<u64>),
    Many,
}

impl Sums {
    /// A choice takes of each kind (price, how many there are) any number.
    pub(super) fn of(kinds: &[(i128, u64)], above: i128, below: i128) -> Self {
        let mut search = Search { kinds, found: Vec::new(), tries: MOST_TRIES };
        search.extend(&mut Vec::new(), above, below);
        match (search.tries, search.found.len()) {
            (0, _) => Self::Many,
            (_, 0) => Self::None,
            (_, 1) => Self::One(search.found.swap_remove(0)),
            (_, _) => Self::Many,
        }
    }
}

struct Search<'a> {
    kinds: &'a [(i128, u64)],
    found: Vec<Vec<u64>>,
    tries: u32,
}

impl Search<'_> {
    fn extend(&mut self, chosen: &mut Vec<u64>, above: i128, below: i128) {
        let Some(&(price, there)) = self.kinds.get(chosen.len()) else {
            if above < 0 && 0 < below {
                self.found.push(chosen.clone());
            }
            return;
        };
        let others = self.kinds.iter().skip(chosen.len() + 1);
        let most_of_others: i128 = others.map(|(price, there)| price * i128::from(*there)).sum();
        for number in 0..=there {
            let taken = price * i128::from(number);
            if taken >= below || self.found.len() > 1 || self.tries == 0 {
                return;
            }
            if taken + most_of_others <= above {
                continue;
            }
            self.tries -= 1;
            chosen.push(number);
            self.extend(chosen, above - taken, below - taken);
            chosen.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(kinds: &[(i128, u64)], above: i128, below: i128) -> Result<Vec<u64>, &'static str> {
        match Sums::of(kinds, above, below) {
            Sums::None => Err("none"),
            Sums::One(chosen) => Ok(chosen),
            Sums::Many => Err("many"),
        }
    }

    #[test]
    fn one_choice_is_found_and_two_are_not_taken_for_one() {
        for (kinds, above, below, expected) in [
            (&[][..], -1, 1, Ok(vec![])),
            (&[], 0, 2, Err("none")),
            (&[(3, 2), (5, 2)], 7, 9, Ok(vec![1, 1])),
            (&[(3, 2), (5, 2)], -1, 1, Ok(vec![0, 0])),
            (&[(3, 2), (5, 2)], 15, 17, Ok(vec![2, 2])),
            (&[(3, 2), (5, 2)], 3, 5, Err("none")),
            (&[(3, 2), (5, 2)], 2, 6, Err("many")),
            (&[(3, 5), (5, 3)], 14, 16, Err("many")),
            (&[(0, 2)], -1, 1, Err("many")),
            (&[(3, 2)], -9, -7, Err("none")),
            (&[(3, 2_000_000)], 2_999_999, 3_000_001, Ok(vec![1_000_000])),
            // Too many to be tried.
            (&[(2, 1_000), (2, 1_000), (2, 1_000)], 3_000, 3_002, Err("many")),
        ] {
            assert_eq!(found(kinds, above, below), expected, "{kinds:?} in {above}..{below}");
        }
    }
}
