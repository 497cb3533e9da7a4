//! The console, port 0: a stream of bytes each way (virtio 1.2, 5.3).
//!
//! Bytes are copied between the caller's slices and pages of the driver's own: a console carries commands and
//! images, and nobody keeps its bytes where they arrived. Both directions are bounded: the host waits while
//! [`RECEIVE_PAGES`] pages are full, and [`Console::transmit`] takes no more than [`TRANSMIT_PAGES`] pages.
//!
//! What is not here: further ports, the size of the terminal, and what the bytes mean.

mod bytes;
#[cfg(test)]
mod tests;

use crate::device::{Device, DeviceError, DeviceType, feature};
use crate::transport::{EntryIndex, InterruptCause, QueueIndex, Transport};
use crate::virtqueue::{
    Access, Fault, Headers, Indirection, Part, Pending, QueueOptions, Suppression, VirtQueue, WakeWhen,
};
use alloc::boxed::Box;
use alloc::vec::Vec;
use isola_machine::apic::InterruptMessage;
use isola_machine::dma::DmaRegion;

/// Pages that the device can fill before it has to wait.
pub const RECEIVE_PAGES: u16 = 16;

/// Pages that can wait to be read by the device.
pub const TRANSMIT_PAGES: u16 = 16;

/// Size of a page, in bytes.
const PAGE: usize = 4096;

const RECEIVE_QUEUE: QueueIndex = QueueIndex(0);
const TRANSMIT_QUEUE: QueueIndex = QueueIndex(1);

/// A page that the device has filled, and that is being read.
#[derive(Debug)]
struct Reading {
    page: DmaRegion,
    next: usize,
    end: usize,
}

/// A console that runs. Dropped, it is reset.
#[derive(Debug)]
pub struct Console {
    // First, so that the device is reset before its queues go.
    device: Device,
    receive: VirtQueue<DmaRegion>,
    transmit: VirtQueue<DmaRegion>,
    reading: Option<Reading>,
    spare: Vec<DmaRegion>,
}

impl Console {
    /// Makes the device behind `transport` run. `interrupt` is the message by which it calls, where it has
    /// message interrupts; otherwise it uses its line. Memory comes from `memory`, called with lengths in bytes:
    /// [`DmaRegion::new`] serves. Interrupts are off at first.
    ///
    /// # Errors
    /// [`DeviceError`]: the device has been reset.
    pub fn start(
        transport: Box<dyn Transport>,
        interrupt: Option<InterruptMessage>,
        memory: &mut dyn FnMut(usize) -> DmaRegion,
    ) -> Result<Self, DeviceError> {
        let mut device =
            Device::negotiate(transport, DeviceType::Console, 0, |_, _| Ok(feature::EVENT_INDEX))?;
        let by_index = device.has(feature::EVENT_INDEX);
        let options = QueueOptions {
            suppression: if by_index { Suppression::EventIndex } else { Suppression::Flags },
            indirection: Indirection::Never,
            headers: Headers::None,
        };
        let entry = match interrupt {
            Some(message) => {
                device.set_message(EntryIndex(0), message)?;
                Some(EntryIndex(0))
            }
            None => None,
        };
        let mut receive = device.queue(RECEIVE_QUEUE, RECEIVE_PAGES, options, entry, memory)?;
        let mut transmit = device.queue(TRANSMIT_QUEUE, TRANSMIT_PAGES, options, entry, memory)?;
        receive.disarm();
        transmit.disarm();
        let spare = (0..transmit.size()).map(|_| memory(PAGE)).collect();
        let pages = receive.size();
        let mut console = Self { device, receive, transmit, reading: None, spare };
        for _ in 0..pages {
            console.offer(memory(PAGE));
        }
        console.device.start();
        console.receive.publish();
        Ok(console)
    }

    /// Gives the device a page to fill. There is a descriptor for each page, so that only a broken queue refuses,
    /// which needs the page no more.
    fn offer(&mut self, page: DmaRegion) {
        let whole = Part { offset: 0, len: PAGE as u32, access: Access::DeviceWrites };
        _ = self.receive.lend_parts(page, &[whole]);
    }

    /// Copies bytes that were received to the beginning of `into`; returns how many. 0 where none are there.
    ///
    /// # Errors
    /// What the device did wrong.
    pub fn receive(&mut self, into: &mut [u8]) -> Result<usize, Fault> {
        let mut copied = 0;
        while let Some(rest) = into.get_mut(copied..).filter(|rest| !rest.is_empty()) {
            let Some(mut reading) = self.next_page()? else { break };
            let count = rest.len().min(reading.end - reading.next);
            if let Some(rest) = rest.get_mut(..count) {
                bytes::read(&reading.page, reading.next, rest);
            }
            copied += count;
            reading.next += count;
            if reading.next < reading.end {
                self.reading = Some(reading);
            } else {
                self.offer(reading.page);
            }
        }
        self.receive.publish();
        Ok(copied)
    }

    /// The page that is being read, or the next that the device has filled.
    fn next_page(&mut self) -> Result<Option<Reading>, Fault> {
        if let Some(reading) = self.reading.take() {
            return Ok(Some(reading));
        }
        let returned = self.receive.take_returned()?;
        // No longer than the page: the queue has checked it.
        Ok(returned.map(|returned| Reading {
            page: returned.buffer,
            next: 0,
            end: returned.written as usize,
        }))
    }

    /// Copies bytes to be sent, from the beginning of `from`, as many as there is room for; returns how many.
    ///
    /// # Errors
    /// What the device did wrong.
    pub fn transmit(&mut self, from: &[u8]) -> Result<usize, Fault> {
        self.reclaim()?;
        let mut copied = 0;
        for chunk in from.chunks(PAGE) {
            let Some(mut page) = self.spare.pop() else { break };
            bytes::write(&mut page, 0, chunk);
            let part = Part { offset: 0, len: chunk.len() as u32, access: Access::DeviceReads };
            if let Err(refused) = self.transmit.lend_parts(page, &[part]) {
                self.spare.push(refused.buffer);
                break;
            }
            copied += chunk.len();
        }
        self.transmit.publish();
        Ok(copied)
    }

    /// Takes back the pages that the device has read.
    fn reclaim(&mut self) -> Result<(), Fault> {
        while let Some(returned) = self.transmit.take_returned()? {
            self.spare.push(returned.buffer);
        }
        Ok(())
    }

    /// Whether received bytes wait.
    pub fn has_received(&self) -> bool {
        self.reading.is_some() || self.receive.has_returned()
    }

    /// Whether everything handed over has been read by the device.
    ///
    /// # Errors
    /// What the device did wrong.
    pub fn is_drained(&mut self) -> Result<bool, Fault> {
        self.reclaim()?;
        Ok(self.transmit.outstanding() == 0)
    }

    /// Asks for an interrupt when bytes are received. It is for one: the handler reads everything, then asks
    /// again. [`Pending::Yes`]: bytes are there already, and no interrupt may come for them.
    pub fn enable_receive_interrupts(&mut self) -> Pending {
        match self.receive.arm(WakeWhen::Returned) {
            Pending::No if self.reading.is_some() => Pending::Yes,
            pending => pending,
        }
    }

    /// Asks for no interrupts on received bytes.
    pub fn disable_receive_interrupts(&mut self) {
        self.receive.disarm();
    }

    /// Asks for an interrupt when there is room to send more. [`Pending::Yes`]: there is already.
    pub fn enable_transmit_interrupts(&mut self) -> Pending {
        self.transmit.arm(WakeWhen::Returned)
    }

    /// Asks for no interrupts on room to send.
    pub fn disable_transmit_interrupts(&mut self) {
        self.transmit.disarm();
    }

    /// Why the device interrupted, and takes the interrupt off it. For devices with a line.
    pub fn acknowledge(&mut self) -> InterruptCause {
        self.device.acknowledge()
    }
}
