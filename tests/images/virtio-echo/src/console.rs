//! The console: echoes every byte, in order, without loss.

use crate::{Echo, GrowthRequest};
use alloc::vec;
use alloc::vec::Vec;
use isola_drivers::console::Console;
use isola_drivers::transport;
use isola_drivers::virtqueue::Pending;
use isola_machine::apic::InterruptMessage;
use isola_machine::device::DeviceRegisters;
use isola_machine::dma::DmaRegion;

pub struct ConsoleEcho {
    console: Console,
    /// Bytes that were received and not sent yet; while there are any, no more are received.
    bytes: Vec<u8>,
    sent: usize,
}

impl ConsoleEcho {
    pub fn start(windows: DeviceRegisters, message: Option<InterruptMessage>) -> Self {
        let transport = transport::open(windows).expect("a modern device");
        let console = Console::start(transport, message, &mut DmaRegion::new).expect("a console");
        Self { console, bytes: Vec::new(), sent: 0 }
    }
}

impl Echo for ConsoleEcho {
    fn acknowledge(&mut self) {
        self.console.acknowledge();
    }

    fn work(&mut self) -> GrowthRequest {
        loop {
            let rest = &self.bytes[self.sent..];
            self.sent += self.console.transmit(rest).expect("the device keeps the rules");
            if self.sent < self.bytes.len() {
                return GrowthRequest::GoOn;
            }
            let mut bytes = vec![0; 10_000];
            let count = self.console.receive(&mut bytes).expect("the device keeps the rules");
            bytes.truncate(count);
            (self.bytes, self.sent) = (bytes, 0);
            if count == 0 {
                return GrowthRequest::GoOn;
            }
        }
    }

    fn arm(&mut self) -> Pending {
        if self.sent < self.bytes.len() {
            self.console.disable_receive_interrupts();
            self.console.enable_transmit_interrupts()
        } else {
            self.console.disable_transmit_interrupts();
            self.console.enable_receive_interrupts()
        }
    }
}
