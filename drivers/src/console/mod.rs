//! The console: a stream of bytes each way (virtio 1.2, 5.3).
//!
//! A device has one port, or several and a pair of control queues ([`control`]) by which it tells of them. The driver
//! serves one stream: port 0 of a device with one, otherwise the first port that the device tells of, among the first
//! [`PORTS`]. QEMU's `virtconsole` is a port 0, and drops what its reader is too slow for; its `virtserialport` is a
//! port from 1 on, and holds the sender back.
//!
//! Bytes are copied between the caller's slices and pages of the driver's own: a console carries commands and
//! images, and nobody keeps its bytes where they arrived. Both directions are bounded: the host waits while
//! [`RECEIVE_PAGES`] pages are full, and [`Console::transmit`] takes no more than [`TRANSMIT_PAGES`] pages.
//!
//! What is not here: two streams at once, the size of the terminal, and what the bytes mean.

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

/// Ports among which the driver looks for the one that there is.
pub const PORTS: u16 = 2;

/// The device has control queues, and may have several ports (virtio 1.2, 5.3.3).
const MULTIPORT: u64 = 1 << 1;

/// Where the number of ports stands in the device's configuration (virtio 1.2, 5.3.4).
const MAX_PORTS_OFFSET: usize = 4;

/// A console that runs. Dropped, it is reset.
#[derive(Debug)]
pub struct Console {
    // First, so that the device is reset before its queues go.
    device: Device,
    /// Where the device has several ports.
    control: Option<Control>,
    /// From port 0 on.
    ports: Vec<Port>,
    /// The index of the port that bytes go through, once the device has told of it.
    open: Option<usize>,
    /// The pages of that port, until then.
    pages: Vec<DmaRegion>,
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

    /// Lets bytes through the port of that index.
    fn open(&mut self, index: usize) {
        if let Some(port) = self.ports.get_mut(index) {
            port.fill(core::mem::take(&mut self.pages));
            self.open = Some(index);
        }
    }

    /// Takes in what the device tells of its ports.
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

    /// The port that bytes go through.
    fn port(&mut self) -> Option<&mut Port> {
        self.ports.get_mut(self.open?)
    }

    /// Copies bytes that were received to the beginning of `into`; returns how many. 0 where none are there.
    ///
    /// # Errors
    /// What the device did wrong.
    pub fn receive(&mut self, into: &mut [u8]) -> Result<usize, Fault> {
        self.hear()?;
        self.port().map_or(Ok(0), |port| port.receive(into))
    }

    /// Copies bytes to be sent, from the beginning of `from`, as many as there is room for; returns how many.
    ///
    /// # Errors
    /// What the device did wrong.
    pub fn transmit(&mut self, from: &[u8]) -> Result<usize, Fault> {
        self.hear()?;
        self.port().map_or(Ok(0), |port| port.transmit(from))
    }

    /// Whether something was received that [`Self::receive`] has not looked at.
    pub fn has_received(&self) -> bool {
        match self.open.and_then(|index| self.ports.get(index)) {
            Some(port) => port.has_received(),
            None => self.control.as_ref().is_some_and(Control::has_received),
        }
    }

    /// Whether everything handed over has been read by the device.
    ///
    /// # Errors
    /// What the device did wrong.
    pub fn is_drained(&mut self) -> Result<bool, Fault> {
        self.port().map_or(Ok(true), Port::is_drained)
    }

    /// Asks for an interrupt when something is received. It is for one: the handler receives everything, then asks
    /// again. [`Pending::Yes`]: something is there already, and no interrupt may come for it.
    pub fn enable_receive_interrupts(&mut self) -> Pending {
        match (self.open, &mut self.control) {
            (None, Some(control)) => control.enable_interrupts(),
            _ => self.port().map_or(Pending::No, Port::enable_receive_interrupts),
        }
    }

    /// Asks for no interrupts on what is received.
    pub fn disable_receive_interrupts(&mut self) {
        match (self.open, &mut self.control) {
            (None, Some(control)) => control.disable_interrupts(),
            _ => _ = self.port().map(Port::disable_receive_interrupts),
        }
    }

    /// Asks for an interrupt when there is room to send more. [`Pending::Yes`]: there is already.
    pub fn enable_transmit_interrupts(&mut self) -> Pending {
        match (self.open, &mut self.control) {
            // There is room as soon as there is a port.
            (None, Some(control)) => control.enable_interrupts(),
            _ => self.port().map_or(Pending::No, Port::enable_transmit_interrupts),
        }
    }

    /// Asks for no interrupts on room to send.
    pub fn disable_transmit_interrupts(&mut self) {
        _ = self.port().map(Port::disable_transmit_interrupts);
    }

    /// Why the device interrupted, and takes the interrupt off it. For devices with a line.
    pub fn acknowledge(&mut self) -> InterruptCause {
        self.device.acknowledge()
    }
}

/// How many ports the device can have.
fn max_ports(device: &Device) -> Result<u32, DeviceError> {
    let half = |transport: &dyn Transport, offset| transport.configuration_u16(offset).map(u32::from);
    device.configuration(|transport| {
        let low = half(transport, MAX_PORTS_OFFSET)?;
        Some(low | half(transport, MAX_PORTS_OFFSET + 2)? << 16)
    })
}
