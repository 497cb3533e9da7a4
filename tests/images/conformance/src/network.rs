//! Checks of the network with an echo server on the host, which has the same address for a cell in QEMU and for one in
//! a process. The application has its own network manager, which counts frames.

use core::net::SocketAddr;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use isola::ebbs::EbbInUse;
use isola::events::{parallel, timeout};
use isola::iobuf::{Chain, IoBuf};
use isola::net::port::{Frame, NetworkPort, ReceivedFrame};
use isola::net::{
    CellNetwork, Filter, NETWORK_MANAGER, NetworkManager, StreamError, UdpSocket, connect, filter,
    wait_for_address,
};
use isola::prelude::*;

/// The bytes that each connection sends, and receives back.
const LEN: usize = 100_000;

/// The local port for datagrams.
const OWN_PORT: u16 = 5_353;

static RECEIVED: AtomicUsize = AtomicUsize::new(0);
static SENT: AtomicUsize = AtomicUsize::new(0);

/// Replaces Isola's network manager by the application's.
pub fn components() -> Result<(), EbbInUse> {
    NETWORK_MANAGER.replace(|| Box::new(CountingManager))
}

struct CountingManager;

impl NetworkManager for CountingManager {
    fn open(&self) -> Option<NetworkPort> {
        Some(filter(CellNetwork.open()?, |_| FrameCounter))
    }
}

struct FrameCounter;

impl Filter for FrameCounter {
    fn received(&mut self, frame: ReceivedFrame) -> Option<ReceivedFrame> {
        RECEIVED.fetch_add(1, Ordering::Relaxed);
        Some(frame)
    }

    fn sending(&mut self, frame: Frame) -> Option<Frame> {
        SENT.fetch_add(1, Ordering::Relaxed);
        Some(frame)
    }
}

/// Checks the network with the echo server at `peer`. Memory is fragmented, so sent data is in pieces. Returns an error
/// for the first failed check.
pub async fn check(peer: SocketAddr) -> Result<(), String> {
    wait_for_address().await;
    let _held = isola_conformance::fragment_memory();
    let streams = parallel(2 * isola::core_count(), move |part| async move {
        stream(peer, part).await.map_err(|error| format!("connection {part}: {error}"))
    });
    streams.await.into_iter().collect::<Result<Vec<()>, String>>()?;
    datagrams(peer).await?;
    // A frame carries 1500 bytes at most.
    let least = 2 * isola::core_count() * LEN / 1500;
    let (received, sent) = (RECEIVED.load(Ordering::Relaxed), SENT.load(Ordering::Relaxed));
    if received.min(sent) < least {
        return Err(format!("the network manager saw {received} frames come and {sent} go of {least}"));
    }
    Ok(())
}

async fn stream(peer: SocketAddr, part: usize) -> Result<(), String> {
    let text = |error: StreamError| error.to_string();
    let mut stream = connect(peer).await.map_err(text)?;
    let sent: Vec<u8> = (0..LEN).map(|index| (index * 7 + part) as u8).collect();
    stream.write(IoBuf::copy_from_slice(&sent).into()).await.map_err(text)?;
    stream.shutdown();
    let mut back = Chain::new();
    while let Some(data) = stream.read().await.map_err(text)? {
        back.append(data);
    }
    if back.to_vec() == sent { Ok(()) } else { Err(format!("{} other bytes came back", back.len())) }
}

async fn datagrams(peer: SocketAddr) -> Result<(), String> {
    let socket = UdpSocket::bind(OWN_PORT).map_err(|error| error.to_string())?;
    for turn in 0..20_u8 {
        // A lost datagram is sent again.
        loop {
            let data = IoBuf::copy_from_slice(&[turn; 64]);
            socket.send_to(peer, data.into()).map_err(|error| error.to_string())?;
            match timeout(Duration::from_millis(500), socket.receive()).await {
                Ok(datagram) if *datagram.payload == [turn; 64] => break,
                Ok(datagram) if datagram.remote != peer => return Err(format!("{}", datagram.remote)),
                _ => {}
            }
        }
    }
    Ok(())
}
