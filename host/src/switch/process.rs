//! The process of a switch: sockets, and the loop that moves frames between them.
//!
//! It creates a socket for the uplink and one for each port, to which QEMU connects once. It ends as soon as QEMU
//! closes one of them, so it never outlives its machine. If QEMU does not connect within [`CONNECT_TIMEOUT`], it ends
//! as well.

use super::control::{self, Answer, Request, SOCKET, SwitchSpec};
use super::fabric::{Fabric, Source, Targets};
use super::link::{Link, LinkEnd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long QEMU may take to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// The maximum number of bytes queued for a port. Above it frames are dropped: a cell that reads nothing delays no
/// other.
const PORT_QUEUE: usize = 1 << 20;

/// The number of queued bytes for the uplink above which the switch does not read from the ports, so their devices
/// wait.
const UPLINK_QUEUE: usize = 256 << 10;

/// Returns the name of a port's socket; the uplink has number 0.
pub fn socket_name(number: usize) -> String {
    format!("port{number}.sock")
}

/// The numbers of the uplink and of the first port.
const UPLINK: usize = 0;
const FIRST_PORT: usize = 1;

/// Returns the number of a switch's sockets: for the uplink, and for each port.
pub fn socket_count(spec: &SwitchSpec) -> usize {
    spec.macs.len() + FIRST_PORT
}

/// Moves frames until QEMU ends.
///
/// # Errors
/// An error if a socket cannot be created, or fails in a way that QEMU's end does not explain.
pub fn run(spec: &SwitchSpec) -> io::Result<()> {
    let mut fabric = Fabric::new(spec.macs.clone(), spec.host);
    for mac in &spec.macs {
        fabric.declare(*mac, spec.address);
    }
    let listeners: Vec<UnixListener> =
        (0..socket_count(spec)).map(|number| listener(&socket_name(number))).collect::<io::Result<_>>()?;
    // Created last: once it exists, all others do.
    let control = listener(SOCKET)?;
    let mut switch = Switch { fabric, spec, links: Vec::new() };
    switch.links.resize_with(listeners.len(), || None);
    let begun = Instant::now();
    let ended = loop {
        match switch.turn(&listeners, &control) {
            Ok(()) if switch.is_whole() || begun.elapsed() < CONNECT_TIMEOUT => {}
            Ok(()) => break Err(io::Error::new(io::ErrorKind::TimedOut, "QEMU has not connected")),
            Err(LinkEnd::Closed) => break Ok(()),
            Err(LinkEnd::Malformed) => {
                break Err(io::Error::new(io::ErrorKind::InvalidData, "QEMU sent an invalid frame"));
            }
            Err(LinkEnd::Io(error)) => break Err(error),
        }
    };
    let _ = fs::remove_file(SOCKET);
    ended
}

fn listener(name: &str) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(Path::new(name))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

struct Switch<'a> {
    fabric: Fabric,
    spec: &'a SwitchSpec,
    /// The uplink, then the ports; `None` until QEMU connects.
    links: Vec<Option<Link>>,
}

impl Switch<'_> {
    fn is_whole(&self) -> bool {
        self.links.iter().all(Option::is_some)
    }

    /// Waits for events and handles them.
    fn turn(&mut self, listeners: &[UnixListener], control: &UnixListener) -> Result<(), LinkEnd> {
        let ready = self.wait(listeners, control).map_err(LinkEnd::Io)?;
        if ready.control
            && let Ok((stream, _)) = control.accept()
        {
            // A client that closes its connection must not end the switch.
            let _ = control::serve(stream, |request| self.answer(request));
        }
        for number in ready.links {
            if self.links[number].is_none() {
                self.accept(number, &listeners[number]).map_err(LinkEnd::Io)?;
            } else {
                self.read(number)?;
            }
        }
        self.links.iter_mut().flatten().try_for_each(Link::flush)
    }

    fn accept(&mut self, number: usize, listener: &UnixListener) -> io::Result<()> {
        if let Ok((stream, _)) = listener.accept() {
            self.links[number] = Some(Link::new(stream)?);
            // Only QEMU may connect, and only once.
            fs::remove_file(socket_name(number))?;
        }
        Ok(())
    }

    fn read(&mut self, number: usize) -> Result<(), LinkEnd> {
        let Some(mut link) = self.links[number].take() else { return Ok(()) };
        let from = if number == UPLINK { Source::Uplink } else { Source::Port(number - FIRST_PORT) };
        let now = Instant::now();
        let read = link.read(|frame| {
            let targets = self.fabric.forward(from, frame, now);
            self.deliver(&targets, frame);
        });
        self.links[number] = Some(link);
        read
    }

    fn deliver(&mut self, targets: &Targets, frame: &[u8]) {
        if targets.uplink
            && let Some(Some(link)) = self.links.get_mut(UPLINK)
        {
            link.push(frame);
        }
        let mut ports = targets.ports;
        while ports != 0 {
            let port = ports.trailing_zeros() as usize;
            ports &= ports - 1;
            match self.links.get_mut(port + FIRST_PORT) {
                Some(Some(link)) if link.queued() + frame.len() <= PORT_QUEUE => link.push(frame),
                Some(Some(_)) => {
                    if let Some(counters) = self.fabric.counters.get_mut(port) {
                        counters.not_read += 1;
                    }
                }
                _ => {}
            }
        }
    }

    fn answer(&mut self, request: Request) -> Answer {
        match request {
            Request::Declare(mac, address) if self.fabric.declare(mac, address) => Answer::Declared,
            Request::Declare(..) => Answer::Unknown,
            Request::Counters => Answer::Counters(
                self.spec.macs.iter().copied().zip(self.fabric.counters.iter().copied()).collect(),
            ),
        }
    }

    fn wait(&self, listeners: &[UnixListener], control: &UnixListener) -> io::Result<PendingEvents> {
        let is_held_up = self.links[UPLINK].as_ref().is_some_and(|link| link.queued() > UPLINK_QUEUE);
        let fds = self.links.iter().zip(listeners).enumerate().map(|(number, (link, listener))| match link {
            None => PollFd::new(listener, PollFlags::IN),
            Some(link) => {
                let mut wanted = PollFlags::empty();
                wanted.set(PollFlags::IN, number == UPLINK || !is_held_up);
                wanted.set(PollFlags::OUT, link.queued() > 0);
                PollFd::new(link.stream(), wanted)
            }
        });
        let mut fds: Vec<PollFd<'_>> = fds.chain([PollFd::new(control, PollFlags::IN)]).collect();
        let limit = (!self.is_whole()).then_some(Timespec { tv_sec: 1, tv_nsec: 0 });
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let arrived = PollFlags::IN | PollFlags::HUP | PollFlags::ERR;
        let mut ready = fds.iter().map(|fd| fd.revents().intersects(arrived)).collect::<Vec<_>>();
        let control = ready.pop().unwrap_or_default();
        Ok(PendingEvents { control, links: (0..ready.len()).filter(|number| ready[*number]).collect() })
    }
}

/// The pending events.
struct PendingEvents {
    control: bool,
    /// The indices of sockets with an event.
    links: Vec<usize>,
}
