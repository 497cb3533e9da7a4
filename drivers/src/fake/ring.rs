//! The device's side of a queue. It follows the protocol, or violates it for a test.

use crate::transport::QueueAddresses;
use crate::virtqueue::Suppression;
use isola_machine::dma_peer::PeerMemory;
use std::vec::Vec;

/// A segment of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub address: u64,
    pub len: u32,
    /// Whether the device may write it.
    pub writable: bool,
}

/// A chain that the driver has made available.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    pub head: u16,
    pub segments: Vec<Segment>,
}

/// A queue from the device's side.
#[derive(Debug)]
pub struct DeviceRing {
    memory: PeerMemory,
    at: QueueAddresses,
    suppression: Suppression,
    /// The next position to read in the available ring.
    next: u16,
    /// The used index.
    pub used: u16,
    /// The used index at the last call of [`Self::wants_interrupt`].
    considered: u16,
}

impl DeviceRing {
    pub fn new(memory: PeerMemory, at: QueueAddresses, suppression: Suppression) -> Self {
        assert_eq!(at.descriptors % 16, 0);
        assert_eq!(at.available % 2, 0);
        assert_eq!(at.used % 4, 0);
        Self { memory, at, suppression, next: 0, used: 0, considered: 0 }
    }

    /// Moves the queue to the state after `count` buffers; the driver has to be in the same state.
    pub fn after(mut self, count: u16) -> Self {
        self.next = count;
        self.considered = count;
        self.set_used_index(count);
        self
    }

    fn slot(&self, position: u16) -> u64 {
        u64::from(position % self.at.size)
    }

    fn word(&self, address: u64) -> u16 {
        self.memory.read_u16(address).unwrap()
    }

    pub fn available_index(&self) -> u16 {
        self.word(self.at.available + 2)
    }

    fn descriptor(&self, address: u64) -> (u64, u32, u16, u16) {
        let mut bytes = [0; 16];
        self.memory.read(address, &mut bytes).unwrap();
        let (address, rest) = bytes.split_first_chunk::<8>().unwrap();
        let (len, rest) = rest.split_first_chunk::<4>().unwrap();
        let (flags, next) = rest.split_first_chunk::<2>().unwrap();
        let next = u16::from_le_bytes(next.try_into().unwrap());
        (u64::from_le_bytes(*address), u32::from_le_bytes(*len), u16::from_le_bytes(*flags), next)
    }

    /// Takes the next available chain.
    pub fn take(&mut self) -> Option<Chain> {
        let waiting = self.available_index().wrapping_sub(self.next);
        assert!(waiting <= self.at.size, "the driver lent more than the queue holds");
        if waiting == 0 {
            return None;
        }
        let head = self.word(self.at.available + 4 + 2 * self.slot(self.next));
        self.next = self.next.wrapping_add(1);
        let mut table = self.at.descriptors;
        let mut entries = self.at.size;
        let mut index = head;
        let mut segments = Vec::new();
        loop {
            assert!(index < entries, "a descriptor outside of its table");
            let (address, len, flags, next) = self.descriptor(table + 16 * u64::from(index));
            if flags & 4 != 0 {
                assert_eq!(
                    (flags, table),
                    (4, self.at.descriptors),
                    "a table in a table, or with more flags"
                );
                assert_eq!(len % 16, 0);
                (table, entries, index) = (address, (len / 16) as u16, 0);
                continue;
            }
            segments.push(Segment { address, len, writable: flags & 2 != 0 });
            assert!(segments.len() <= usize::from(entries), "a loop of descriptors");
            if flags & 1 == 0 {
                break;
            }
            index = next;
        }
        assert!(segments.is_sorted_by_key(|segment| segment.writable), "readable segments come first");
        Some(Chain { head, segments })
    }

    /// Requests a notification for the next chain.
    pub fn ask_for_notice(&self) {
        match self.suppression {
            Suppression::EventIndex => self.set_available_event(self.next),
            Suppression::Flags => self.memory.write_u16(self.at.used, 0).unwrap(),
        }
    }

    /// Suppresses notifications.
    pub fn refuse_notice(&self) {
        match self.suppression {
            Suppression::EventIndex => self.set_available_event(self.next.wrapping_sub(1)),
            Suppression::Flags => self.memory.write_u16(self.at.used, 1).unwrap(),
        }
    }

    fn set_available_event(&self, event: u16) {
        self.memory.write_u16(self.at.used + 4 + 8 * u64::from(self.at.size), event).unwrap();
    }

    /// Returns whether an available chain was not taken.
    pub fn has_available(&self) -> bool {
        self.available_index() != self.next
    }

    /// Returns a used chain.
    pub fn give_back(&mut self, head: u16, written: u32) {
        self.write_used(self.used, u32::from(head), written);
        self.set_used_index(self.used.wrapping_add(1));
    }

    /// Writes an entry of the used ring, valid or not.
    pub fn write_used(&self, position: u16, id: u32, written: u32) {
        let place = self.at.used + 4 + 8 * self.slot(position);
        self.memory.write(place, &id.to_le_bytes()).unwrap();
        self.memory.write(place + 4, &written.to_le_bytes()).unwrap();
    }

    /// Writes the used index, valid or not.
    pub fn set_used_index(&mut self, index: u16) {
        self.used = index;
        self.memory.write_u16(self.at.used + 2, index).unwrap();
    }

    /// Returns whether the driver wants an interrupt for the buffers returned since the last call.
    pub fn wants_interrupt(&mut self) -> bool {
        let before = core::mem::replace(&mut self.considered, self.used);
        match self.suppression {
            Suppression::Flags => self.used != before && self.word(self.at.available) & 1 == 0,
            Suppression::EventIndex => {
                let event = self.word(self.at.available + 4 + 2 * u64::from(self.at.size));
                // Counted one by one, unlike in the driver: the entry with the index `event` causes the interrupt.
                let count = self.used.wrapping_sub(before);
                (0..count).any(|nth| before.wrapping_add(nth) == event)
            }
        }
    }

    /// Reads all readable segments of a chain.
    pub fn read(&self, chain: &Chain) -> Vec<u8> {
        let mut bytes = Vec::new();
        for segment in chain.segments.iter().filter(|segment| !segment.writable) {
            let start = bytes.len();
            bytes.resize(start + segment.len as usize, 0);
            self.memory.read(segment.address, &mut bytes[start..]).unwrap();
        }
        bytes
    }

    /// Writes the last byte of a chain.
    pub fn write_last(&self, chain: &Chain, byte: u8) {
        let last = chain.segments.last().expect("a segment");
        self.memory.write(last.address + u64::from(last.len) - 1, &[byte]).unwrap();
    }

    /// Writes to the writable segments of a chain, and returns it.
    pub fn answer(&mut self, chain: &Chain, mut bytes: &[u8]) {
        let written = bytes.len() as u32;
        for segment in chain.segments.iter().filter(|segment| segment.writable) {
            let (now, later) = bytes.split_at(bytes.len().min(segment.len as usize));
            self.memory.write(segment.address, now).unwrap();
            bytes = later;
        }
        assert!(bytes.is_empty(), "the chain is too short for the answer");
        self.give_back(chain.head, written);
    }
}
