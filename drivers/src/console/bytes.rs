//! Copies between slices and regions, in words of eight bytes where possible.

use isola_machine::dma::DmaRegion;

/// Copies `into.len()` bytes from `region` at `offset`. This range must lie within the region.
pub(super) fn read(region: &DmaRegion, mut offset: usize, into: &mut [u8]) {
    let (head, rest) = into.split_at_mut(to_alignment(offset).min(into.len()));
    for byte in head {
        *byte = region.read_u8(offset);
        offset += 1;
    }
    let (words, tail) = rest.as_chunks_mut::<8>();
    for word in words {
        *word = region.read_u64(offset).to_le_bytes();
        offset += 8;
    }
    for byte in tail {
        *byte = region.read_u8(offset);
        offset += 1;
    }
}

/// Copies `from` to `region` at `offset`. This range must lie within the region.
pub(super) fn write(region: &mut DmaRegion, mut offset: usize, from: &[u8]) {
    let (head, rest) = from.split_at(to_alignment(offset).min(from.len()));
    for byte in head {
        region.write_u8(offset, *byte);
        offset += 1;
    }
    let (words, tail) = rest.as_chunks::<8>();
    for word in words {
        region.write_u64(offset, u64::from_le_bytes(*word));
        offset += 8;
    }
    for byte in tail {
        region.write_u8(offset, *byte);
        offset += 1;
    }
}

/// Returns the number of bytes to the next multiple of 8.
fn to_alignment(offset: usize) -> usize {
    offset.next_multiple_of(8) - offset
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn copies_are_exact_at_every_offset_and_length() {
        let mut region = DmaRegion::new(64);
        let data: Vec<u8> = (1..=40).collect();
        for offset in 0..16 {
            for len in 0..=40 {
                write(&mut region, offset, &[0; 41]);
                write(&mut region, offset, &data[..len]);
                let mut back = [0xee; 41];
                read(&region, offset, &mut back);
                assert_eq!(&back[..len], &data[..len], "at {offset}, {len} bytes");
                assert!(back[len..].iter().all(|byte| *byte == 0), "wrote past {offset} + {len}");
            }
        }
    }
}
