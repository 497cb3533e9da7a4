//! Compressed streams, recognised by their first bytes.

use flate2::read::MultiGzDecoder;
use lzma_rust2::XzReader;
use ruzstd::decoding::StreamingDecoder;
use std::io::{self, BufRead, Read};

/// The most bytes of memory, in KiB, for the dictionary of an xz stream: that of `xz -9` has 64 MiB.
const MOST_XZ_KIB: u32 = 192 * 1024;

/// The formats of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Plain,
    Gzip,
    Zstd,
    Xz,
}

/// Returns the format of a stream with these first bytes.
pub fn format_of(start: &[u8]) -> Format {
    match start {
        [0x1f, 0x8b, ..] => Format::Gzip,
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Format::Zstd,
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Format::Xz,
        _ => Format::Plain,
    }
}

/// Returns a stream that may be compressed as it was before.
pub fn decompress<'a>(mut source: impl BufRead + 'a) -> io::Result<Box<dyn Read + 'a>> {
    Ok(match format_of(source.fill_buf()?) {
        Format::Plain => Box::new(source),
        Format::Gzip => Box::new(MultiGzDecoder::new(source)),
        Format::Zstd => Box::new(ZstdFrames { source: Some(source), frame: None }),
        Format::Xz => Box::new(XzReader::new_mem_limit(source, true, MOST_XZ_KIB)),
    })
}

/// The frames of a zstd stream, one behind the other. The decoder refuses windows of more than 100 MiB.
struct ZstdFrames<R: BufRead> {
    /// The rest, between two frames.
    source: Option<R>,
    frame: Option<Box<StreamingDecoder<R, ruzstd::decoding::FrameDecoder>>>,
}

impl<R: BufRead> Read for ZstdFrames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(frame) = &mut self.frame {
                let count = frame.read(buffer)?;
                if count > 0 || buffer.is_empty() {
                    return Ok(count);
                }
                self.source = self.frame.take().map(|frame| frame.into_inner());
            }
            let Some(source) = &mut self.source else { return Ok(0) };
            skip_skippable(source)?;
            if source.fill_buf()?.is_empty() {
                return Ok(0);
            }
            let Some(source) = self.source.take() else { return Ok(0) };
            let frame = StreamingDecoder::new(source).map_err(io::Error::other)?;
            self.frame = Some(Box::new(frame));
        }
    }
}

/// Skips frames without contents, in which tools keep indexes.
fn skip_skippable(source: &mut impl BufRead) -> io::Result<()> {
    while let [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] = source.fill_buf()? {
        let mut header = [0; 8];
        source.read_exact(&mut header)?;
        let len = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
        io::copy(&mut source.by_ref().take(u64::from(len)), &mut io::sink())?;
    }
    Ok(())
}
