//! Streams of bytes in both directions, and their bounds.

mod ports;

use super::*;
use crate::fake::pci::FakeFunction;
use crate::fake::registers::{FakeDevice, SharedDevice, lock, mmio};
use crate::fake::ring::DeviceRing;
use crate::transport::mmio::MmioTransport;
use crate::transport::pci::PciTransport;
use isola_machine::dma_peer::SharedMemory;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::vec;

/// Event indices, and a feature that the driver does not use: the terminal's size.
const OFFERED: u64 = 1 << 32 | 1 << 29 | 0b01;

struct Rig {
    device: SharedDevice,
    console: Console,
    input: DeviceRing,
    output: DeviceRing,
}

impl Rig {
    fn new(offered: u64) -> Self {
        let memory = SharedMemory::new(1 << 20);
        let mut device = FakeDevice::new(3, offered, 2, vec![]);
        device.memory = Some(memory.peer());
        let device = Arc::new(Mutex::new(device));
        let transport = Box::new(MmioTransport::new(mmio(&device)).unwrap());
        let console = Console::start(transport, None, &mut |len| memory.region(len).unwrap()).unwrap();
        let input = lock(&device).ring(0);
        let output = lock(&device).ring(1);
        Self { device, console, input, output }
    }

    /// Sends bytes as the host, in pieces of at most `piece` bytes, as long as the driver has lent pages.
    fn host_sends(&mut self, bytes: &[u8], piece: usize) -> usize {
        let mut sent = 0;
        for part in bytes.chunks(piece) {
            let Some(chain) = self.input.take() else { break };
            self.input.answer(&chain, part);
            sent += part.len();
        }
        sent
    }

    fn host_receives(&mut self) -> Option<Vec<u8>> {
        let chain = self.output.take()?;
        let bytes = self.output.read(&chain);
        self.output.give_back(chain.head, 0);
        Some(bytes)
    }
}

#[test]
fn bytes_go_both_ways() {
    let mut rig = Rig::new(OFFERED);
    assert_eq!(lock(&rig.device).accepted, OFFERED & !0b01, "the size of the terminal was negotiated");
    assert_eq!(lock(&rig.device).notices, [0]);
    let mut bytes = [0; 16];
    assert_eq!(rig.console.receive(&mut bytes), Ok(0));
    assert!(!rig.console.has_received());
    rig.host_sends(b"hello", 5);
    assert!(rig.console.has_received());
    assert_eq!(rig.console.receive(&mut bytes[..2]), Ok(2));
    assert!(rig.console.has_received());
    assert_eq!(rig.console.receive(&mut bytes[2..]), Ok(3));
    assert_eq!(&bytes[..5], b"hello");
    assert_eq!(rig.console.transmit(b"and back"), Ok(8));
    assert_eq!(rig.console.is_drained(), Ok(false));
    assert_eq!(rig.host_receives().unwrap(), b"and back");
    assert_eq!(rig.console.is_drained(), Ok(true));
}

#[test]
fn a_console_runs_on_pci_with_a_message_interrupt() {
    let memory = SharedMemory::new(1 << 20);
    let device: SharedDevice = Arc::new(Mutex::new(FakeDevice::new(3, OFFERED, 2, vec![0; 12])));
    lock(&device).memory = Some(memory.peer());
    let function = FakeFunction::new(&device, 2);
    let transport = Box::new(PciTransport::new(function.config(), &function.bars()).unwrap());
    let message = InterruptMessage { address: 0xfee0_0000, data: 0x31 };
    let mut console =
        Console::start(transport, Some(message), &mut |len| memory.region(len).unwrap()).unwrap();
    assert!(lock(&device).queues.iter().all(|queue| queue.entry == 0));
    assert_eq!(function.table.lock().unwrap().u32(8), 0x31);
    let mut input = lock(&device).ring(0);
    assert_eq!(console.enable_receive_interrupts(), Pending::No);
    let chain = input.take().unwrap();
    input.answer(&chain, b"x");
    assert!(input.wants_interrupt());
    console.disable_receive_interrupts();
    drop(console);
    assert_eq!(lock(&device).status, 0);
}

#[test]
fn both_directions_are_bounded() {
    let mut rig = Rig::new(OFFERED);
    let flood = vec![7; 40 * PAGE];
    assert_eq!(rig.console.transmit(&flood), Ok(usize::from(TRANSMIT_PAGES) * PAGE));
    assert_eq!(rig.console.transmit(&flood), Ok(0));
    assert_eq!(rig.console.enable_transmit_interrupts(), Pending::No);
    rig.host_receives().unwrap();
    assert!(rig.output.wants_interrupt());
    assert_eq!(rig.console.transmit(&flood), Ok(PAGE));

    assert_eq!(rig.host_sends(&flood, PAGE), usize::from(RECEIVE_PAGES) * PAGE);
    assert_eq!(rig.host_sends(&flood, PAGE), 0);
    let mut half = vec![0; PAGE / 2];
    assert_eq!(rig.console.receive(&mut half), Ok(PAGE / 2));
    assert_eq!(rig.host_sends(&flood, PAGE), 0, "a half-read page was lent");
    assert_eq!(rig.console.receive(&mut half), Ok(PAGE / 2));
    assert_eq!(rig.host_sends(&flood, PAGE), PAGE);
}

#[test]
fn a_half_read_page_is_pending() {
    let mut rig = Rig::new(OFFERED);
    rig.host_sends(b"ab", 2);
    assert_eq!(rig.console.enable_receive_interrupts(), Pending::Yes);
    assert_eq!(rig.console.receive(&mut [0]), Ok(1));
    assert_eq!(rig.console.enable_receive_interrupts(), Pending::Yes);
    assert_eq!(rig.console.receive(&mut [0]), Ok(1));
    assert_eq!(rig.console.enable_receive_interrupts(), Pending::No);
}

#[test]
fn a_length_beyond_the_page_is_a_fault() {
    let mut rig = Rig::new(OFFERED);
    let chain = rig.input.take().unwrap();
    rig.input.give_back(chain.head, 4097);
    let fault = Fault::TooLong { written: 4097, writable: 4096 };
    assert_eq!(rig.console.receive(&mut [0; 8]), Err(fault));
    assert_eq!(rig.console.receive(&mut [0; 8]), Err(fault));
}

#[test]
fn empty_pages_are_lent_again_at_once() {
    let mut rig = Rig::new(OFFERED);
    for _ in 0..100 {
        let chain = rig.input.take().expect("the driver keeps no page");
        rig.input.give_back(chain.head, 0);
        assert_eq!(rig.console.receive(&mut [0; 8]), Ok(0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn streams_arrive_complete_in_pieces_of_all_sizes(
        offered in prop_oneof![Just(OFFERED), Just(OFFERED & !(1 << 29))],
        steps in prop::collection::vec((0_u8..4, 1_usize..9000), 1..120),
    ) {
        let mut rig = Rig::new(offered);
        // The period does not divide the length of a page.
        let stream = |from: usize, len: usize| (from..from + len).map(|at| (at % 251) as u8);
        let (mut into, mut out) = ((0, 0), (0, 0));
        let mut waiting = VecDeque::new();
        for (step, size) in steps {
            match step {
                0 => {
                    let bytes: Vec<u8> = stream(into.0, size).collect();
                    into.0 += rig.host_sends(&bytes, size.div_ceil(3).min(PAGE));
                }
                1 => {
                    let mut bytes = vec![0; size];
                    let count = rig.console.receive(&mut bytes).unwrap();
                    prop_assert!(bytes[..count].iter().copied().eq(stream(into.1, count)));
                    into.1 += count;
                    prop_assert!(count == size || into.0 == into.1, "received bytes were not returned");
                }
                2 => {
                    let bytes: Vec<u8> = stream(out.0, size).collect();
                    out.0 += rig.console.transmit(&bytes).unwrap();
                }
                _ => if let Some(bytes) = rig.host_receives() {
                    waiting.extend(bytes);
                }
            }
        }
        while let Some(bytes) = rig.host_receives() {
            waiting.extend(bytes);
        }
        out.1 = waiting.len();
        prop_assert_eq!(out.0, out.1);
        prop_assert!(waiting.into_iter().eq(stream(0, out.0)));
    }
}
