//! A connection's handler: what comes goes into the session, and what that answers goes out, in the same event.

use crate::date::UnixSeconds;
use crate::response::Prefaces;
use crate::session::Session;
use crate::site::Site;
use crate::watch::{Waiting, Watch};
use alloc::boxed::Box;
use core::cell::RefCell;
use core::mem;
use isola_ebbs::{Ebb, Representative, platform};
use isola_events::now;
use isola_iobuf::Chain;
use isola_net::{ConnectionHandler, FailReason, SendError, TcpConnection, latency};

static PREFACES: Ebb<CorePrefaces> = Ebb::new();

/// The prefaces of a core's responses.
struct CorePrefaces {
    prefaces: RefCell<Prefaces>,
}

impl Representative for CorePrefaces {
    fn create() -> Self {
        Self { prefaces: RefCell::new(Prefaces::new(unix_seconds())) }
    }
}

fn unix_seconds() -> UnixSeconds {
    UnixSeconds(platform().clock().unix_ns(now()) / 1_000_000_000)
}

/// Runs `work` with the prefaces of this second.
fn with_prefaces<T>(work: impl FnOnce(&Prefaces) -> T) -> T {
    let mut prefaces = PREFACES.prefaces.borrow_mut();
    prefaces.refresh(unix_seconds());
    work(&prefaces)
}

/// Who serves a connection, until either side has enough.
pub fn serve(connection: &TcpConnection, site: &'static Site) -> Client {
    let mut client = Client::new(site, Watch::begin(connection));
    if client.watch.is_none() {
        // Nobody would see that it takes too long: it is not waited for, whatever for.
        with_prefaces(|prefaces| client.session.turn_away(prefaces));
        // Who is gone needs no answer.
        let _ = connection.send_some(&mut client.session.take_output(usize::MAX));
        connection.close();
    }
    client
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Requests and responses.
    Talking,
    /// All is said. What still comes is read and forgotten: a reset for it would take the last response from the client
    /// before that has read it (RFC 9112, 9.6).
    Parting,
}

/// Whether the client may say more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    Open,
    Closed,
}

/// What becomes of a connection when nothing moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Wait(Waiting),
    End,
}

/// Serves a client's connection. It has all that belongs to it, and nothing of its core: so it goes to another core as it is.
#[derive(Debug)]
pub struct Client {
    site: &'static Site,
    /// `None`: there were too many.
    watch: Option<Watch>,
    session: Session,
    /// What was taken from the session and not handed over yet.
    output: Chain,
    stage: Stage,
    peer: Peer,
}

impl Client {
    fn new(site: &'static Site, watch: Option<Watch>) -> Self {
        let (session, output) = (Session::new(), Chain::new());
        Self { site, watch, session, output, stage: Stage::Talking, peer: Peer::Open }
    }

    /// Goes on until nothing moves. A client that does not read its responses is not read either.
    fn go_on(&mut self, connection: &TcpConnection) {
        // Who is gone needs no answer.
        let next = self.run(connection).unwrap_or(Next::End);
        let (Next::Wait(waiting), Some(watch)) = (next, &mut self.watch) else { return self.end(connection) };
        watch.wait_for(waiting);
        if waiting == Waiting::Output { connection.pause() } else { connection.resume() }
    }

    fn end(&mut self, connection: &TcpConnection) {
        connection.close();
        self.forget();
    }

    /// The connection is over.
    fn forget(&mut self) {
        self.watch.iter_mut().for_each(Watch::leave);
    }

    fn run(&mut self, connection: &TcpConnection) -> Result<Next, SendError> {
        loop {
            // Most of the time there is nothing, or one request.
            let served = self.session.served();
            let all_answered = !self.session.is_within_request()
                || with_prefaces(|prefaces| self.session.serve(self.site, prefaces));
            latency::answered(self.session.served() - served);
            if !self.send_all(connection)? {
                return Ok(Next::Wait(Waiting::Output));
            }
            if !all_answered {
                continue;
            }
            // Of one that will say no more, requests that are not whole will not be.
            if self.peer == Peer::Closed {
                return Ok(Next::End);
            }
            if self.session.has_ended() && self.stage == Stage::Talking {
                connection.shutdown();
                self.stage = Stage::Parting;
            }
            return Ok(Next::Wait(match self.stage {
                Stage::Parting => Waiting::End,
                Stage::Talking if self.session.is_within_request() => Waiting::Head,
                Stage::Talking => Waiting::Idle,
            }));
        }
    }

    /// Hands output over. Returns whether that was all of it, as it is where the client reads.
    fn send_all(&mut self, connection: &TcpConnection) -> Result<bool, SendError> {
        while self.session.has_output() || !self.output.is_empty() {
            // What was made while the client did not read comes behind what it did not read.
            if self.output.is_empty() {
                self.output = self.session.take_output(usize::MAX);
            }
            if connection.send_some(&mut self.output)? > 0 {
                self.watch.iter().for_each(Watch::progress);
            }
            if !self.output.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl ConnectionHandler for Client {
    fn received(&mut self, connection: &TcpConnection, data: Chain) {
        self.session.receive(data);
        self.go_on(connection);
    }

    fn send_space(&mut self, connection: &TcpConnection) {
        self.go_on(connection);
    }

    fn peer_closed(&mut self, connection: &TcpConnection) {
        self.peer = Peer::Closed;
        self.go_on(connection);
    }

    /// The connection's core has seen it wait for too long.
    fn called_again(&mut self, connection: &TcpConnection) {
        // Something may have come since.
        let Some(watch) = self.watch.as_ref().filter(|watch| watch.has_expired()) else { return };
        match watch.waiting() {
            Waiting::Idle | Waiting::Head => {
                with_prefaces(|prefaces| self.session.time_out(prefaces));
                self.go_on(connection);
            }
            Waiting::Output | Waiting::End => self.end(connection),
        }
    }

    fn moving(&mut self) -> Option<Box<dyn ConnectionHandler + Send>> {
        self.watch.as_mut()?.leave();
        let nobody = Self::new(self.site, None);
        Some(Box::new(mem::replace(self, nobody)))
    }

    fn arrived(&mut self, connection: &TcpConnection) {
        self.watch.iter_mut().for_each(|watch| watch.enter(connection));
    }

    fn ended(&mut self, _: Option<FailReason>) {
        self.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::SiteBuilder;
    use crate::watch::MAX_CONNECTIONS;
    use alloc::vec::Vec;
    use core::future::pending;
    use isola_gateway::test_cells::{dial, talk};
    use isola_hosted::Loss;
    use isola_net::listen_with;

    #[test]
    fn who_comes_on_top_is_turned_away_and_not_waited_for() {
        let server = || async {
            let site: &'static Site = Box::leak(Box::new(SiteBuilder::new(7).build()));
            let listening = listen_with(80, 16, move |connection| {
                // As many as there may be are there already.
                let all: Vec<_> = (0..MAX_CONNECTIONS).map_while(|_| Watch::begin(connection)).collect();
                assert_eq!(all.len(), MAX_CONNECTIONS);
                serve(connection, site)
            });
            pending::<()>().await;
            drop(listening);
        };
        talk(1, Loss::Never, server, || async {
            let mut stream = dial(80).await;
            let mut all = Chain::new();
            // This side neither says nor ends anything.
            while let Some(data) = stream.read().await.unwrap() {
                all.append(data);
            }
            assert!(all.to_vec().starts_with(b"HTTP/1.1 503 "));
        });
    }
}
