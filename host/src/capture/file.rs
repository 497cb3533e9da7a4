//! A pcapng file, written block by block: the file is valid whenever the writing ends.

use super::CapturedFrame;
use isola_abi::query::Direction;
use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption, InterfaceTsResolution,
};
use std::borrow::Cow;
use std::io;
use std::time::Duration;

/// Generates the bytes of a pcapng file.
pub struct CaptureFile {
    writer: PcapNgWriter<Vec<u8>>,
}

impl CaptureFile {
    /// Starts a file for a capture of the cell `name`, with at most `snap_len` bytes of each frame.
    ///
    /// # Errors
    /// An error if the name is too long.
    pub fn begin(name: &str, snap_len: u32) -> io::Result<Self> {
        let mut writer = PcapNgWriter::new(Vec::new()).map_err(io::Error::other)?;
        let options = vec![
            InterfaceDescriptionOption::IfName(Cow::Borrowed(name)),
            InterfaceDescriptionOption::IfTsResol(InterfaceTsResolution::NANO),
        ];
        let interface =
            InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen: snap_len, options };
        writer.write_pcapng_block(interface).map_err(io::Error::other)?;
        Ok(Self { writer })
    }

    /// Adds a frame, with the number of frames lost before it.
    ///
    /// # Errors
    /// An error if its time of day cannot be encoded.
    pub fn add(&mut self, frame: &CapturedFrame, left_out: u64) -> io::Result<()> {
        // The lowest two bits of the flags are the direction.
        let flags = match frame.head.direction {
            Direction::In => 1,
            Direction::Out => 2,
        };
        let mut options = vec![EnhancedPacketOption::Flags(flags)];
        if left_out > 0 {
            options.push(EnhancedPacketOption::DropCount(left_out));
        }
        let block = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: Duration::from_nanos(frame.head.unix_ns),
            original_len: frame.head.len_bytes,
            data: Cow::Borrowed(&frame.bytes),
            options,
        };
        self.writer.write_pcapng_block(block).map(drop).map_err(io::Error::other)
    }

    /// Returns the bytes generated since the last call.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(self.writer.get_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_abi::query::FrameHead;
    use pcap_file::pcapng::{Block, PcapNgReader};

    #[test]
    fn a_file_has_times_directions_and_drop_counts() {
        let frame = |unix_ns, direction, len_bytes| CapturedFrame {
            head: FrameHead { unix_ns, direction, len_bytes, sum: None },
            bytes: vec![7; 61],
        };
        let mut file = CaptureFile::begin("kv", 61).unwrap();
        let mut bytes = file.take();
        file.add(&frame(1_800_000_000_123_456_789, Direction::In, 1514), 0).unwrap();
        bytes.extend(file.take());
        file.add(&frame(1, Direction::Out, 61), 9).unwrap();
        bytes.extend(file.take());
        assert!(file.take().is_empty());
        let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
        let mut packets = Vec::new();
        while let Some(block) = reader.next_block() {
            if let Block::EnhancedPacket(packet) = block.unwrap().0 {
                packets.push((
                    packet.timestamp.as_nanos(),
                    packet.original_len,
                    packet.options.len(),
                    packet.data.len(),
                ));
            }
        }
        assert_eq!(packets, [(1_800_000_000_123_456_789, 1514, 1, 61), (1, 61, 2, 61)]);
    }
}
