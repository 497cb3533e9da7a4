//! Devices with several ports: the choice of the port, and hostile messages.

use super::*;

/// Event indices and several ports.
const OFFERED_PORTS: u64 = OFFERED | MULTIPORT;

/// The console of a device with several ports, and the device's ends of the control queues.
struct Ported {
    device: SharedDevice,
    console: Console,
    to_driver: DeviceRing,
    from_driver: DeviceRing,
}

fn start(offered: u64, queues: u16, max_ports: u32) -> (SharedDevice, Result<Console, DeviceError>) {
    let memory = SharedMemory::new(1 << 20);
    let mut configuration = vec![0; 12];
    configuration[4..8].copy_from_slice(&max_ports.to_le_bytes());
    let mut device = FakeDevice::new(3, offered, queues, configuration);
    device.memory = Some(memory.peer());
    let device = Arc::new(Mutex::new(device));
    let transport = Box::new(MmioTransport::new(mmio(&device)).unwrap());
    let console = Console::start(transport, None, &mut |len| memory.region(len).unwrap());
    (device, console)
}

impl Ported {
    fn new(offered: u64) -> Self {
        let (device, console) = start(offered, 64, 31);
        let to_driver = lock(&device).ring(2);
        let from_driver = lock(&device).ring(3);
        Self { device, console: console.unwrap(), to_driver, from_driver }
    }

    /// Returns the next message of the driver: port, event, value.
    fn hear(&mut self) -> Option<(u32, u16, u16)> {
        let chain = self.from_driver.take()?;
        let bytes = self.from_driver.read(&chain);
        self.from_driver.give_back(chain.head, 0);
        let [a, b, c, d, e, f, g, h] = bytes.try_into().expect("a message of eight bytes");
        Some((u32::from_le_bytes([a, b, c, d]), u16::from_le_bytes([e, f]), u16::from_le_bytes([g, h])))
    }

    /// Sends a message to the driver, followed by `rest`.
    fn tell(&mut self, port: u32, event: u16, value: u16, rest: &[u8]) {
        let chain = self.to_driver.take().expect("a lent buffer");
        let head = u64::from(port) | u64::from(event) << 32 | u64::from(value) << 48;
        self.to_driver.answer(&chain, &[&head.to_le_bytes(), rest].concat());
    }
}

#[test]
fn bytes_flow_through_the_port_that_the_device_adds() {
    let mut rig = Ported::new(OFFERED_PORTS);
    assert_eq!(lock(&rig.device).accepted, OFFERED_PORTS & !1);
    assert_eq!(rig.hear(), Some((0, 0, 1)), "the driver announces its readiness");
    assert_eq!(rig.hear(), None);
    assert_eq!(rig.console.transmit(b"too early"), Ok(0));
    assert_eq!(rig.console.enable_receive_interrupts(), Pending::No);
    assert_eq!(rig.console.enable_transmit_interrupts(), Pending::No);

    rig.tell(1, 1, 1, b"");
    assert!(rig.to_driver.wants_interrupt(), "the receive interrupt covers the new port");
    assert!(rig.console.has_received());
    assert_eq!(rig.console.enable_receive_interrupts(), Pending::Yes);
    assert_eq!(rig.console.receive(&mut [0; 8]), Ok(0));
    assert_eq!(rig.hear(), Some((1, 3, 1)), "the port is ready");
    assert_eq!(rig.hear(), Some((1, 6, 1)), "the port is open");

    let mut input = lock(&rig.device).ring(4);
    let mut output = lock(&rig.device).ring(5);
    assert_eq!(rig.console.transmit(b"hello"), Ok(5));
    let sent = output.take().unwrap();
    assert_eq!(output.read(&sent), b"hello");
    assert_eq!(rig.console.enable_receive_interrupts(), Pending::No);
    let chain = input.take().unwrap();
    input.answer(&chain, b"and back");
    assert!(input.wants_interrupt());
    let mut bytes = [0; 16];
    assert_eq!(rig.console.receive(&mut bytes), Ok(8));
    assert_eq!(&bytes[..8], b"and back");
}

#[test]
fn port_0_of_a_device_with_several_ports_works() {
    let mut rig = Ported::new(OFFERED_PORTS & !feature::EVENT_INDEX);
    rig.tell(0, 1, 1, b"");
    assert_eq!(rig.console.transmit(b"first"), Ok(5));
    let mut output = lock(&rig.device).ring(1);
    let sent = output.take().unwrap();
    assert_eq!(output.read(&sent), b"first");
}

#[test]
fn later_ports_do_not_replace_the_first_valid_one() {
    let mut rig = Ported::new(OFFERED_PORTS);
    rig.hear();
    rig.tell(7, 1, 1, b"");
    rig.tell(u32::MAX, 1, 1, b"");
    rig.tell(1, 1, 1, b"");
    rig.tell(0, 1, 1, b"");
    assert_eq!(rig.console.receive(&mut [0; 8]), Ok(0));
    rig.tell(0, 1, 1, b"");
    assert_eq!(rig.console.receive(&mut [0; 8]), Ok(0));
    assert_eq!([rig.hear(), rig.hear(), rig.hear()], [Some((1, 3, 1)), Some((1, 6, 1)), None]);
}

#[test]
fn other_messages_are_ignored_and_their_buffers_lent_again() {
    let mut rig = Ported::new(OFFERED_PORTS);
    rig.hear();
    for event in (0..40).filter(|event| *event != 1) {
        rig.tell(1, event, 1, b"a name, or the size of a terminal");
        assert_eq!(rig.console.receive(&mut [0; 8]), Ok(0));
    }
    // Too short for a message, although the buffer still has an earlier PORT_ADD.
    let chain = rig.to_driver.take().unwrap();
    rig.to_driver.answer(&chain, &[1, 0, 0, 0]);
    assert_eq!(rig.console.receive(&mut [0; 8]), Ok(0));
    assert_eq!(rig.hear(), None);
    rig.tell(1, 1, 1, b"");
    assert_eq!(rig.console.receive(&mut [0; 8]), Ok(0));
    assert_eq!(rig.hear(), Some((1, 3, 1)));
}

#[test]
fn returning_a_buffer_that_was_never_lent_is_a_fault() {
    let mut rig = Ported::new(OFFERED_PORTS);
    rig.to_driver.write_used(0, 99, 8);
    rig.to_driver.set_used_index(1);
    let fault = Fault::UnknownBuffer { id: 99 };
    assert_eq!(rig.console.receive(&mut [0; 8]), Err(fault));
    assert_eq!(rig.console.transmit(b"x"), Err(fault));
}

#[test]
fn a_device_with_max_ports_1_needs_four_queues() {
    let (device, console) = start(OFFERED_PORTS, 4, 1);
    assert!(console.is_ok());
    assert_eq!(lock(&device).queues.iter().filter(|queue| queue.ready).count(), 4);
}

#[test]
fn a_device_without_the_queues_of_its_ports_is_rejected() {
    let (_, console) = start(OFFERED_PORTS, 4, 31);
    assert_eq!(console.err(), Some(DeviceError::NoQueue { queue: crate::transport::QueueIndex(4) }));
}
