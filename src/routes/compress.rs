//! The content codings of files, also used by `build.rs`.

use std::io::{Result, Write};

pub(super) type Compress = fn(&[u8]) -> Result<Vec<u8>>;

/// In order of preference.
pub(super) const CODINGS: [(&str, Compress); 2] = [("br", brotli), ("gzip", gzip)];

fn brotli(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut small = Vec::new();
    let best = brotli::enc::BrotliEncoderParams { quality: 11, ..Default::default() };
    brotli::BrotliCompress(&mut &bytes[..], &mut small, &best)?;
    Ok(small)
}

fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes)?;
    encoder.finish()
}
