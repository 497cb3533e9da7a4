//! A disk of ordinary memory, which executes the requests of a queue (virtio 1.2, 5.2.6).

use super::ring::{Chain, DeviceRing};
use std::vec;
use std::vec::Vec;

pub const OK: u8 = 0;
pub const IO_ERROR: u8 = 1;
pub const UNSUPPORTED: u8 = 2;

/// A request as the device sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenRequest {
    pub kind: u32,
    pub sector: u64,
    /// The bytes behind the header that the device reads.
    pub payload: Vec<u8>,
    /// The lengths of the data's segments.
    pub segments: Vec<u32>,
    /// The number of bytes to read from the disk.
    pub wanted: usize,
}

/// A disk behind one queue.
pub struct FakeDisk {
    pub ring: DeviceRing,
    pub bytes: Vec<u8>,
    /// The number of executed flushes, and the ranges of discards: sector, sectors, flags.
    pub flushes: usize,
    pub discards: Vec<(u64, u32, u32)>,
}

impl FakeDisk {
    pub fn new(ring: DeviceRing, sectors: usize) -> Self {
        Self { ring, bytes: vec![0; sectors * 512], flushes: 0, discards: vec![] }
    }

    /// Takes the next available request.
    pub fn take(&mut self) -> Option<(Chain, SeenRequest)> {
        let chain = self.ring.take()?;
        let seen = self.parse(&chain);
        Some((chain, seen))
    }

    fn parse(&self, chain: &Chain) -> SeenRequest {
        let [header, data @ .., status] = chain.segments.as_slice() else { panic!("a chain of one segment") };
        assert_eq!((header.len, header.writable), (16, false), "the header");
        assert_eq!((status.len, status.writable), (1, true), "the status");
        let read = self.ring.read(chain);
        let kind = u32::from_le_bytes(read[..4].try_into().unwrap());
        assert_eq!(read[4..8], [0; 4], "a reserved field");
        let sector = u64::from_le_bytes(read[8..16].try_into().unwrap());
        assert!(data.iter().all(|segment| segment.writable == (kind == 0)), "the direction of the data");
        let segments: Vec<u32> = data.iter().map(|segment| segment.len).collect();
        let wanted = if kind == 0 { segments.iter().map(|len| *len as usize).sum() } else { 0 };
        SeenRequest { kind, sector, payload: read[16..].to_vec(), segments, wanted }
    }

    /// Executes a request and returns it to the driver.
    pub fn execute(&mut self, chain: &Chain, seen: &SeenRequest) {
        let at = seen.sector as usize * 512;
        let mut answer = match seen.kind {
            0 => self.bytes[at..at + seen.wanted].to_vec(),
            _ => vec![],
        };
        match seen.kind {
            0 => {}
            1 => self.bytes[at..at + seen.payload.len()].copy_from_slice(&seen.payload),
            4 => self.flushes += 1,
            11 => self.discards.push(range(&seen.payload)),
            13 => {
                let (sector, sectors, flags) = range(&seen.payload);
                assert_eq!(flags & !1, 0, "flags of a range");
                self.bytes[sector as usize * 512..][..sectors as usize * 512].fill(0);
            }
            kind => panic!("a request of type {kind}"),
        }
        answer.push(OK);
        self.ring.answer(chain, &answer);
    }

    /// Returns a request with this status and no data, as if it wrote `written` bytes.
    pub fn refuse(&mut self, chain: &Chain, status: u8, written: u32) {
        self.ring.write_last(chain, status);
        self.ring.give_back(chain.head, written);
    }

    /// Executes all available requests in order. Returns their number.
    pub fn execute_all(&mut self) -> usize {
        let mut count = 0;
        while let Some((chain, seen)) = self.take() {
            self.execute(&chain, &seen);
            count += 1;
        }
        count
    }
}

/// Parses the range of a discard, or of a write of zeros.
fn range(payload: &[u8]) -> (u64, u32, u32) {
    assert_eq!(payload.len(), 16, "one range");
    let sector = u64::from_le_bytes(payload[..8].try_into().unwrap());
    let word = |at: usize| u32::from_le_bytes(payload[at..at + 4].try_into().unwrap());
    (sector, word(8), word(12))
}
