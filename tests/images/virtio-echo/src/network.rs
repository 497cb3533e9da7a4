//! The network device: echoes frames in their order, in varying numbers of pieces.

use crate::frame::{FrameAction, answer};
use crate::{Echo, GrowthRequest};
use alloc::vec;
use alloc::vec::Vec;
use isola_drivers::net::{
    HEADER_LEN, Merging, NetDevice, NetInterrupts, NetOptions, NetQueue, Offload, Reception,
};
use isola_drivers::transport;
use isola_drivers::virtqueue::{Pending, WakeWhen};
use isola_machine::apic::InterruptMessage;
use isola_machine::device::DeviceRegisters;
use isola_machine::dma::DmaRegion;
use isola_machine::dma_peer::{SharedBuffer, SharedMemory};
use isola_machine::serial_line;

/// The number of buffers to receive into, and of frames on their way back.
const RECEIVE_BUFFERS: usize = 64;
const FRAMES: usize = 32;

/// The most pieces of a sent frame: more than fit in the ring itself if the device supports indirect tables.
const PIECES: usize = 6;

/// A frame in pieces.
type Frame = Vec<SharedBuffer>;

pub struct Network {
    device: NetDevice,
    queue: NetQueue<SharedBuffer, Frame>,
    spare: Vec<Frame>,
    bytes: Vec<u8>,
    count: usize,
}

impl Network {
    pub fn start(windows: DeviceRegisters, message: Option<InterruptMessage>) -> Self {
        let messages: Vec<_> = message.into_iter().collect();
        let interrupts = match messages.as_slice() {
            [] => NetInterrupts::Line,
            pairs => NetInterrupts::Messages { pairs, configuration: None },
        };
        let options = NetOptions {
            pairs: 1,
            queue_size: 256,
            max_mtu: 1500,
            merging: Merging::Never,
            reception: Reception::Own,
            interrupts,
        };
        let transport = transport::open(windows).expect("a modern device");
        let (device, mut queues) =
            NetDevice::start(transport, &options, &mut DmaRegion::new).expect("a network device");
        let mut queue: NetQueue<SharedBuffer, Frame> = queues.pop().expect("one pair");
        let memory = SharedMemory::new((RECEIVE_BUFFERS + FRAMES * PIECES) * 4096);
        for _ in 0..RECEIVE_BUFFERS {
            let buffer = memory.buffer(2048).expect("enough memory");
            queue.fill(buffer).expect("room for the buffer");
        }
        queue.flush();
        let piece = || memory.buffer(2048).expect("enough memory");
        let spare = (0..FRAMES).map(|_| (0..PIECES).map(|_| piece()).collect()).collect();
        let [a, b, c, d, e, f] = device.mac();
        serial_line!("network: {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}, {:?}", device.link());
        Self { device, queue, spare, bytes: vec![0; 2048], count: 0 }
    }

    /// Splits `frame` into pieces and sends them: `pieces`, or fewer if the frame is short.
    fn send(&mut self, mut frame: Frame, bytes: core::ops::Range<usize>, pieces: usize) {
        let bytes = &self.bytes[bytes];
        let mut chunks = bytes.chunks(bytes.len().div_ceil(pieces));
        for piece in &mut frame {
            let chunk = chunks.next().unwrap_or_default();
            piece.set_len(chunk.len());
            piece.write(chunk);
        }
        self.queue.transmit(frame, Offload::None).expect("room for each spare frame");
    }
}

impl Echo for Network {
    fn acknowledge(&mut self) {
        self.device.acknowledge();
    }

    fn work(&mut self) -> GrowthRequest {
        loop {
            while let Some(frame) = self.queue.reclaim().expect("the device keeps the rules") {
                self.spare.push(frame);
            }
            let Some(frame) = self.spare.pop() else { break };
            let Some(received) = self.queue.receive().expect("the device keeps the rules") else {
                self.spare.push(frame);
                break;
            };
            let end = HEADER_LEN + received.len;
            received.buffer.read(&mut self.bytes[..end]);
            self.queue.fill(received.buffer).expect("room for a buffer that was taken out");
            match answer(&mut self.bytes[..end], self.device.mac()) {
                FrameAction::SendBack => {
                    self.count += 1;
                    self.send(frame, HEADER_LEN..end, 1 + self.count % PIECES);
                }
                FrameAction::Drop => self.spare.push(frame),
                FrameAction::End => {
                    serial_line!("frames: {}", self.count);
                    return GrowthRequest::End;
                }
            }
        }
        self.queue.flush();
        GrowthRequest::GoOn
    }

    fn arm(&mut self) -> Pending {
        if self.spare.is_empty() {
            self.queue.disable_receive_interrupts();
            self.queue.enable_transmit_interrupts(WakeWhen::MostReturned)
        } else {
            self.queue.disable_transmit_interrupts();
            self.queue.enable_receive_interrupts()
        }
    }
}
