//! The console: a stream of bytes each way (virtio 1.2, 5.3).
//!
//! A device has one port, or several ports and a pair of control queues ([`control`]) on which it announces them. The
//! driver serves one stream: port 0 of a device with one port, otherwise the first announced port among the first
//! [`PORTS`]. QEMU's `virtconsole` is port 0, and drops bytes if its reader is too slow; its `virtserialport` is a port
//! from 1 on, and exerts back-pressure on the sender.
//!
//! The driver copies bytes between the caller's slices and its own pages: a console transports commands and images, and
//! no caller keeps their bytes in place. Both directions are bounded: the host waits while [`RECEIVE_PAGES`] pages are
//! full, and [`Console::transmit`] accepts at most [`TRANSMIT_PAGES`] pages.
//!
//! Not here: two streams at once, the size of the terminal, and the meaning of the bytes.

mod bytes;
mod control;
mod port;
#[cfg(test)]
mod tests;

pub use port::{RECEIVE_PAGES, TRANSMIT_PAGES};

use crate::device::{Device, DeviceError, DeviceType, feature};
use crate::transport::{EntryIndex, InterruptCause, Transport};
use crate::virtqueue::{Fault, Headers, Indirection, Pending, QueueOptions, Suppression};
use alloc::boxed::Box;
use alloc::vec::Vec;
use control::Control;
use isola_machine::apic::InterruptMessage;
use isola_machine::dma::DmaRegion;
use port::{PAGE, Port, PortQueues};

/// The ports among which the driver selects one.
pub const PORTS: u16 = 2;

/// The device has control queues, and may have several ports (virtio 1.2, 5.3.3).
const MULTIPORT: u64 = 1 << 1;

/// The offset of the number of ports in the device's configuration (virtio 1.2, 5.3.4).
const MAX_PORTS_OFFSET: usize = 4;

/// A running console. Dropping it resets it.
#[derive(Debug)]
pub struct Console {
    // First, so that the device is reset before its queues are dropped.
    device: Device,
    /// The control queues of a device with several ports.
    control: Option<Control>,
    /// The ports, from port 0 on.
    ports: Vec<Port>,
    /// The index of the open port, once the device has announced it.
    open: Option<usize>,
    /// The pages of that port, until it is open.
    pages: Vec<DmaRegion>,
}

impl Console {
    /// Starts the device behind `transport`. `interrupt` is its message interrupt, if it supports these; otherwise it
    /// uses its interrupt line. `memory` allocates regions of a length in bytes: [`DmaRegion::new`] suffices.
    /// Interrupts are initially disabled.
    ///
    /// # Errors
    /// [`DeviceError`]; the device has been reset.
    pub fn start(
        transport: Box<dyn Transport>,
        interrupt: Option<InterruptMessage>,
        memory: &mut dyn FnMut(usize) -> DmaRegion,
    ) -> Result<Self, DeviceError> {
        let mut ports = 1;
        let mut device = Device::negotiate(transport, DeviceType::Console, 0, |device, offered| {
            if offered & MULTIPORT != 0 {
                ports = max_ports(device)?.clamp(1, PORTS.into()) as u16;
            }
            Ok(feature::EVENT_INDEX | MULTIPORT)
        })?;
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
        let ports = (0..ports)
            .map(|port| Port::new(&mut device, PortQueues::of(port), options, entry, memory))
            .collect::<Result<_, _>>()?;
        let control = match device.has(MULTIPORT) {
            true => Some(Control::new(&mut device, options, entry, memory)?),
            false => None,
        };
        let pages = (0..RECEIVE_PAGES + TRANSMIT_PAGES).map(|_| memory(PAGE)).collect();
        device.start();
        let mut console = Self { device, control, ports, open: None, pages };
        match &mut console.control {
            Some(control) => control.begin(),
            None => console.open(0),
        }
        Ok(console)
    }

    /// Opens the port of that index and gives it the pages.
    fn open(&mut self, index: usize) {
        if let Some(port) = self.ports.get_mut(index) {
            port.fill(core::mem::take(&mut self.pages));
            self.open = Some(index);
        }
    }

    /// Processes the device's control messages.
    fn hear(&mut self) -> Result<(), Fault> {
        let Some(control) = &mut self.control else { return Ok(()) };
        let mut found = None;
        while let Some(port) = control.next_port()? {
            if self.open.or(found).is_none() && (port as usize) < self.ports.len() {
                found = Some(port as usize);
            }
        }
        if let Some(index) = found {
            self.open(index);
            if let Some(control) = &mut self.control {
                control.disable_interrupts();
                control.open(index as u16);
            }
        }
        Ok(())
    }

    /// Returns the open port.
    fn port(&mut self) -> Option<&mut Port> {
        self.ports.get_mut(self.open?)
    }

    /// Copies received bytes to the beginning of `into`. Returns their number, 0 if there are none.
    ///
    /// # Errors
    /// The device's protocol violation.
    pub fn receive(&mut self, into: &mut [u8]) -> Result<usize, Fault> {
        self.hear()?;
        self.port().map_or(Ok(0), |port| port.receive(into))
    }

    /// Queues bytes from the beginning of `from`, as many as there is room for. Returns their number.
    ///
    /// # Errors
    /// The device's protocol violation.
    pub fn transmit(&mut self, from: &[u8]) -> Result<usize, Fault> {
        self.hear()?;
        self.port().map_or(Ok(0), |port| port.transmit(from))
    }

    /// Returns whether received bytes, or a control message, wait for [`Self::receive`].
    pub fn has_received(&self) -> bool {
        match self.open.and_then(|index| self.ports.get(index)) {
            Some(port) => port.has_received(),
            None => self.control.as_ref().is_some_and(Control::has_received),
        }
    }

    /// Returns whether the device has read all bytes.
    ///
    /// # Errors
    /// The device's protocol violation.
    pub fn is_drained(&mut self) -> Result<bool, Fault> {
        self.port().map_or(Ok(true), Port::is_drained)
    }

    /// Enables one interrupt for the next received bytes: the handler receives everything, then enables it again.
    /// Returns [`Pending::Yes`] if bytes are present already: an interrupt may not come for them.
    pub fn enable_receive_interrupts(&mut self) -> Pending {
        match (self.open, &mut self.control) {
            (None, Some(control)) => control.enable_interrupts(),
            _ => self.port().map_or(Pending::No, Port::enable_receive_interrupts),
        }
    }

    /// Disables receive interrupts.
    pub fn disable_receive_interrupts(&mut self) {
        match (self.open, &mut self.control) {
            (None, Some(control)) => control.disable_interrupts(),
            _ => _ = self.port().map(Port::disable_receive_interrupts),
        }
    }

    /// Enables an interrupt for room to send. Returns [`Pending::Yes`] if there is room already.
    pub fn enable_transmit_interrupts(&mut self) -> Pending {
        match (self.open, &mut self.control) {
            // An open port has room.
            (None, Some(control)) => control.enable_interrupts(),
            _ => self.port().map_or(Pending::No, Port::enable_transmit_interrupts),
        }
    }

    /// Disables transmit interrupts.
    pub fn disable_transmit_interrupts(&mut self) {
        _ = self.port().map(Port::disable_transmit_interrupts);
    }

    /// Returns and clears the cause of an interrupt, for devices with an interrupt line.
    pub fn acknowledge(&mut self) -> InterruptCause {
        self.device.acknowledge()
    }
}

/// Returns the most ports that the device can have.
fn max_ports(device: &Device) -> Result<u32, DeviceError> {
    let half = |transport: &dyn Transport, offset| transport.configuration_u16(offset).map(u32::from);
    device.configuration(|transport| {
        let low = half(transport, MAX_PORTS_OFFSET)?;
        Some(low | half(transport, MAX_PORTS_OFFSET + 2)? << 16)
    })
}
