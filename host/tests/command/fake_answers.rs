//! What the fake supervisor's cells answer to inquiries.

use isola_abi::inquiry::{AnswerPiece, Answers, CounterName, Fact, Inquiry, Line, Questions};

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
    let done = |core| Fact::Done { core, connections: 0 };
    match inquiry {
        Inquiry::Counters => vec![
            begin,
            Fact::Names(vec![name("tcp", "tcp_accepted"), name("tcp", "drop_tcp_port"), name("udp", "drop_udp_port")]),
            Fact::Counters(vec![3, 1000, 0]),
            done(0),
            Fact::Counters(vec![4, 17, 0]),
            done(1),
        ],
        Inquiry::Connections { .. } | Inquiry::Capture(_) | Inquiry::EndCapture => vec![begin, done(0), done(1)],
    }
}
