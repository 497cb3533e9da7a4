//! A connection's handler: what comes goes into the session, and what that answers goes out, in the same event.

use crate::date::UnixSeconds;
use crate::response::Prefaces;
use crate::session::Session;
use crate::site::Site;
use crate::watch::{Patient, Waiting, Watch};
use alloc::rc::Rc;
use core::cell::RefCell;
use core::fmt;
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
pub fn serve(connection: &TcpConnection, site: &'static Site) -> Served {
    let client = Watch::begin(|watch| Client::new(connection.clone(), site, watch));
    if client.is_none() {
        // Nobody would see that it takes too long: it is not waited for, whatever for.
        let mut session = Session::new();
        with_prefaces(|prefaces| session.turn_away(prefaces));
        // Who is gone needs no answer.
        let _ = connection.send_some(&mut session.take_output(usize::MAX));
        connection.close();
    }
    Served(client)
}

/// Serves a connection; nobody's, where there were too many.
pub struct Served(Option<Rc<Client>>);

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Served").field(&self.0.is_some()).finish()
    }
}

impl ConnectionHandler for Served {
    fn received(&mut self, _: &TcpConnection, data: Chain) {
        if let Some(client) = &self.0 {
            client.go_on(|talk| talk.session.receive(data));
        }
    }

    fn send_space(&mut self, _: &TcpConnection) {
        if let Some(client) = &self.0 {
            client.go_on(|_| ());
        }
    }

    fn peer_closed(&mut self, _: &TcpConnection) {
        if let Some(client) = &self.0 {
            client.go_on(|talk| talk.peer = Peer::Closed);
        }
    }

    fn ended(&mut self, _: Option<FailReason>) {
        if let Some(client) = &self.0 {
            client.watch.end();
        }
    }
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

/// A client of this core.
struct Client {
    connection: TcpConnection,
    site: &'static Site,
    watch: Watch,
    talk: RefCell<Talk>,
}

/// What was said and is to be said.
struct Talk {
    session: Session,
    /// What was taken from the session and not handed over yet.
    output: Chain,
    stage: Stage,
    peer: Peer,
}

impl Client {
    fn new(connection: TcpConnection, site: &'static Site, watch: Watch) -> Self {
        let (session, output) = (Session::new(), Chain::new());
        let talk = Talk { session, output, stage: Stage::Talking, peer: Peer::Open };
        Self { connection, site, watch, talk: RefCell::new(talk) }
    }

    /// Notes something, and goes on until nothing moves. A client that does not read its responses is not read either.
    fn go_on(&self, note: impl FnOnce(&mut Talk)) {
        let mut talk = self.talk.borrow_mut();
        note(&mut talk);
        // Who is gone needs no answer.
        let next = self.run(&mut talk).unwrap_or(Next::End);
        drop(talk);
        match next {
            Next::Wait(waiting) => {
                self.watch.wait_for(waiting);
                if waiting == Waiting::Output { self.connection.pause() } else { self.connection.resume() }
            }
            Next::End => self.end(),
        }
    }

    fn end(&self) {
        self.connection.close();
        self.watch.end();
    }

    fn run(&self, talk: &mut Talk) -> Result<Next, SendError> {
        loop {
            // Most of the time there is nothing, or one request.
            let served = talk.session.served();
            let all_answered = !talk.session.is_within_request()
                || with_prefaces(|prefaces| talk.session.serve(self.site, prefaces));
            latency::answered(talk.session.served() - served);
            if !self.send_all(talk)? {
                return Ok(Next::Wait(Waiting::Output));
            }
            if !all_answered {
                continue;
            }
            // Of one that will say no more, requests that are not whole will not be.
            if talk.peer == Peer::Closed {
                return Ok(Next::End);
            }
            if talk.session.has_ended() && talk.stage == Stage::Talking {
                self.connection.shutdown();
                talk.stage = Stage::Parting;
            }
            return Ok(Next::Wait(match talk.stage {
                Stage::Parting => Waiting::End,
                Stage::Talking if talk.session.is_within_request() => Waiting::Head,
                Stage::Talking => Waiting::Idle,
            }));
        }
    }

    /// Hands output over. Returns whether that was all of it, as it is where the client reads.
    fn send_all(&self, talk: &mut Talk) -> Result<bool, SendError> {
        while talk.session.has_output() || !talk.output.is_empty() {
            // What was made while the client did not read comes behind what it did not read.
            if talk.output.is_empty() {
                talk.output = talk.session.take_output(usize::MAX);
            }
            if self.connection.send_some(&mut talk.output)? > 0 {
                self.watch.progress();
            }
            if !talk.output.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Patient for Client {
    fn watch(&self) -> &Watch {
        &self.watch
    }

    fn expired(&self, waiting: Waiting) {
        match waiting {
            Waiting::Idle | Waiting::Head => {
                self.go_on(|talk| with_prefaces(|prefaces| talk.session.time_out(prefaces)));
            }
            Waiting::Output | Waiting::End => self.end(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::SiteBuilder;
    use crate::watch::MAX_CONNECTIONS;
    use alloc::boxed::Box;
    use alloc::vec::Vec;
    use core::future::pending;
    use isola_gateway::test_cells::{dial, talk};
    use isola_hosted::Loss;
    use isola_net::listen_with;

    /// Whom the cell waits for in vain.
    struct Nobody(Watch);

    impl Patient for Nobody {
        fn watch(&self) -> &Watch {
            &self.0
        }

        fn expired(&self, _: Waiting) {}
    }

    #[test]
    fn who_comes_on_top_is_turned_away_and_not_waited_for() {
        let server = || async {
            let all: Vec<_> = (0..MAX_CONNECTIONS).map_while(|_| Watch::begin(Nobody)).collect();
            assert_eq!(all.len(), MAX_CONNECTIONS);
            let site: &'static Site = Box::leak(Box::new(SiteBuilder::new(7).build()));
            let listening = listen_with(80, 16, move |connection| serve(connection, site));
            pending::<()>().await;
            drop((listening, all));
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
