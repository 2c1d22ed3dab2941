//! Decimal numbers on the path of a request, where the formatting of the standard library takes ten
//! times as many instructions.

use std::fmt;

/// Writes a number, after as many zeros as it lacks to `width` digits.
pub(crate) fn write(out: &mut impl fmt::Write, number: u64, width: usize) -> fmt::Result {
    let mut buffer = itoa::Buffer::new();
    let digits = buffer.format(number);
    for _ in digits.len()..width {
        out.write_char('0')?;
    }
    out.write_str(digits)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn number_is_written_as_by_the_standard_library(number: u64, width in 0_usize..25) {
            let mut text = String::new();
            write(&mut text, number, width).unwrap();
            prop_assert_eq!(text, format!("{number:0width$}"));
        }
    }
}
