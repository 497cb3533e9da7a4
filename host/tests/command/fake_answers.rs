//! What the fake supervisor's cells answer to inquiries.

use isola_abi::inquiry::{AnswerPiece, Answers, Connection, CounterName, Fact, Inquiry, Line, Questions};

/// A cell that answers at once, by the code of a cell.
pub struct Answering {
    questions: Questions,
    answers: Box<Answers>,
}

impl Answering {
    pub fn new() -> Self {
        Self { questions: Questions::default(), answers: Box::default() }
    }

    pub fn ask(&mut self, line: Line, question: &[u8]) -> u32 {
        let number = self.questions.put(line, question).unwrap();
        let ring = self.answers.on(line);
        ring.begin(number);
        for fact in facts(Inquiry::decode(question).unwrap()) {
            ring.push([&fact.encode()[..]].into_iter()).unwrap();
        }
        number
    }

    pub fn piece(&self, line: Line, number: u32, from: u64, max_bytes: u32) -> AnswerPiece {
        let asked = self.questions.number(line);
        self.answers.on(line).piece(number, asked, from, (max_bytes as usize).min(100))
    }
}

fn facts(inquiry: Inquiry) -> Vec<Fact> {
    let name = |layer: &str, name: &str| CounterName { layer: layer.into(), name: name.into() };
    let begin = Fact::Begin { cores: 2 };
    let done = |core, connections| Fact::Done { core, connections, half_open: 1, time_wait: 0 };
    match inquiry {
        Inquiry::Counters => vec![
            begin,
            Fact::Names(vec![
                name("tcp", "tcp_accepted"),
                name("tcp", "drop_tcp_port"),
                name("udp", "drop_udp_port"),
            ]),
            Fact::Counters(vec![3, 1000, 0]),
            done(0, 0),
            Fact::Counters(vec![4, 17, 0]),
            done(1, 0),
        ],
        Inquiry::Connections { filter, most } => {
            let all = [connection(0, 40_001), connection(1, 40_002)];
            let meant: Vec<_> = all.into_iter().filter(|one| filter.matches(one.local, one.remote)).collect();
            let told = meant.iter().take(most as usize).cloned().map(|one| Fact::Connection(Box::new(one)));
            [begin].into_iter().chain(told).chain([done(0, meant.len() as u32), done(1, 0)]).collect()
        }
        Inquiry::Capture(_) | Inquiry::EndCapture => Vec::new(),
    }
}

fn connection(core: u32, port: u16) -> Connection {
    Connection {
        local: ([10, 0, 2, 16], 80).into(),
        remote: ([10, 0, 2, 2], port).into(),
        state: "ESTABLISHED".into(),
        core,
        congestion: "CUBIC".into(),
        window: 14_600,
        in_flight: 1460,
        send_queue: 2000,
        receive_queue: 3,
        peer_window: 65_535,
        receive_window: 60_000,
        mss: 1460,
        round_trip_ns: Some(1_500_000),
        timeout_ns: 200_000_000,
        retransmits: 5,
        bytes_in: 4096,
        bytes_out: 1 << 20,
        idle_ns: 2_000_000,
    }
}
