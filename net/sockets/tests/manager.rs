//! An application's network manager that replaces the default.

use isola_events::timeout;
use isola_hosted::{Loss, Settings, switch};
use isola_iobuf::{Chain, IoBuf, IoBufMut};
use isola_net::interface::NetworkError;
use isola_net::port::{Frame, FramesPending, NetworkPort, NetworkQueue, Offloads, ReceivedFrame};
use isola_net::{
    AddressIsGiven, Addressing, CellNetwork, ConfigError, Filter, Ipv4Config, MacAddr, NETWORK_MANAGER,
    NetworkManager, NetworkSettings, TcpStream, connect, filter, listen, set_address, start,
    wait_for_address,
};
use isola_platform::VacatedMemory;
use isola_test_cells::{SERVER, TestCell, dial, read_exactly, run_cells};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A port that the server's network manager blocks.
const CLOSED: u16 = 8;

/// The address that the client sets.
const CHOSEN: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 77);

static DROPPED: AtomicUsize = AtomicUsize::new(0);
static SENT: AtomicUsize = AtomicUsize::new(0);

/// The server's network manager: it installs a filter.
struct Walled;

impl NetworkManager for Walled {
    fn open(&self) -> Option<NetworkPort> {
        Some(filter(CellNetwork.open()?, |_| Wall))
    }
}

/// The client's network manager: it sets no address.
struct Unaddressed;

impl NetworkManager for Unaddressed {
    fn open(&self) -> Option<NetworkPort> {
        CellNetwork.open()
    }

    fn settings(&self) -> NetworkSettings {
        NetworkSettings { addressing: Addressing::Unset, ..NetworkSettings::default() }
    }
}

/// A network manager whose device has an invalid address.
struct Careless;

impl NetworkManager for Careless {
    fn open(&self) -> Option<NetworkPort> {
        Some(NetworkPort { mac: [0xff; 6], ..CellNetwork.open()? })
    }
}

struct Wall;

impl Filter for Wall {
    fn received(&mut self, frame: ReceivedFrame) -> Option<ReceivedFrame> {
        // The destination port of a TCP segment over IPv4 without options.
        let is_for_it = frame.frame.get(36..38) == Some(&CLOSED.to_be_bytes()) && frame.frame[23] == 6;
        if is_for_it {
            DROPPED.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(frame)
    }

    fn sending(&mut self, frame: Frame) -> Option<Frame> {
        SENT.fetch_add(1, Ordering::Relaxed);
        Some(frame)
    }
}

/// Sends the peer's address to it.
async fn name(mut stream: TcpStream) {
    let peer = stream.peer().unwrap().ip().to_string();
    stream.write(Chain::from(IoBuf::from(peer.into_bytes()))).await.unwrap();
    stream.shutdown();
}

#[test]
fn a_network_manager_filters_frames_and_controls_the_address() {
    let server = || async {
        let _listening = [7, CLOSED].map(|port| listen(port, 4, name).unwrap());
        std::future::pending::<()>().await;
    };
    let client = || async {
        assert_eq!(isola_net::address(), None);
        set_address(Some(Ipv4Config::new(CHOSEN, 24, None))).unwrap();
        assert_eq!(wait_for_address().await.address, CHOSEN);
        let mut stream = dial(7).await;
        let expected = CHOSEN.to_string();
        assert_eq!(read_exactly(&mut stream, expected.len()).await, expected.as_bytes());
        assert!(SENT.load(Ordering::Relaxed) > 0);
        assert_eq!(DROPPED.load(Ordering::Relaxed), 0);
        let walled = timeout(Duration::from_millis(300), connect((SERVER, CLOSED).into())).await;
        assert!(walled.is_err(), "the filter let it through: {walled:?}");
        assert!(DROPPED.load(Ordering::Relaxed) > 0);
        // The filter blocks only that port.
        dial(7).await;
    };
    let [a, b] = switch(Loss::Never);
    run_cells([
        TestCell::new(1, 2, a, server)
            .with_components(|| NETWORK_MANAGER.replace(|| Box::new(Walled)))
            .until_others_end(),
        TestCell::new(2, 1, b, client)
            .without_address()
            .with_components(|| NETWORK_MANAGER.replace(|| Box::new(Unaddressed))),
    ]);
}

#[test]
fn a_cell_with_a_fixed_address_keeps_it() {
    let [port, _other] = switch(Loss::Never);
    run_cells([TestCell::new(1, 1, port, || async {
        let refused = set_address(Some(Ipv4Config::new(CHOSEN, 24, None))).unwrap_err();
        assert_eq!(refused, AddressIsGiven(SERVER));
        assert!(refused.to_string().contains("--network dhcp"));
        isola_events::sleep(Duration::from_millis(20)).await;
        assert_eq!(isola_net::address().unwrap().address, SERVER);
    })]);
}

#[test]
fn invalid_settings_of_a_network_manager_are_rejected_with_the_reason() {
    let [port] = switch(Loss::Never);
    isola_hosted::run(Settings::default(), vec![port], |_| {
        NETWORK_MANAGER.replace(|| Box::new(Careless)).unwrap();
        let refused = NetworkError::Config(ConfigError::Mac(MacAddr([0xff; 6])));
        assert_eq!(start(), Err(refused));
        assert!(refused.to_string().contains("unicast"));
        // The network was not started.
        assert_eq!(isola_net::address(), None);
    });
}

/// A device that has room for every second frame only.
#[derive(Default)]
struct Narrow {
    tries: usize,
    sent: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl NetworkQueue for Narrow {
    fn vector(&self) -> Option<u8> {
        Some(0x40)
    }

    fn offloads(&self) -> Offloads {
        Offloads::default()
    }

    fn attach(&mut self) {}

    fn receive(&mut self) -> Option<ReceivedFrame> {
        None
    }

    fn send(&mut self, frame: Frame) -> Result<(), Frame> {
        self.tries += 1;
        if self.tries % 2 == 1 {
            return Err(frame);
        }
        self.sent.lock().unwrap().push(frame.to_vec());
        Ok(())
    }

    fn flush(&mut self) {}

    fn reclaim(&mut self, _recycle: &mut dyn FnMut(IoBufMut)) {}

    fn enable_interrupts(&mut self) -> FramesPending {
        FramesPending::No
    }

    fn disable_interrupts(&mut self) {}

    fn redirect(&mut self) {}

    fn vacate(&mut self, _: &VacatedMemory) {}

    fn has_failed(&self) -> bool {
        false
    }
}

/// Prepends a byte to every frame.
struct Tunnel;

impl Filter for Tunnel {
    fn sending(&mut self, mut frame: Frame) -> Option<Frame> {
        frame.head.prepend(1)?[0] = b'>';
        Some(frame)
    }
}

#[test]
fn a_frame_without_room_in_the_device_is_filtered_once() {
    let narrow = Narrow::default();
    let sent = narrow.sent.clone();
    let port =
        NetworkPort { mac: [2; 6], mtu: 1500, headroom: 0, queues: vec![Box::new(narrow)], spreading: None };
    let mut queue = filter(port, |_| Tunnel).queues.remove(0);
    for name in ["a", "b", "c"] {
        let mut head = IoBufMut::with_room(1, 1);
        head.append_slice(name.as_bytes()).unwrap();
        let frame = Frame { head, payload: Chain::new(), checksum: None, segment_len: None };
        let refused = queue.send(frame).unwrap_err();
        queue.send(refused).unwrap();
    }
    assert_eq!(*sent.lock().unwrap(), [b">a", b">b", b">c"]);
}
