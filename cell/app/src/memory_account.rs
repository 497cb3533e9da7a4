//! The account of the cell's memory by use, as the host tool asks for it.

use crate::storage::cached_bytes;
use alloc::vec::Vec;
use isola_abi::query::{AnswerRecord, MemoryPart};
use isola_ebbs::platform;
use isola_net::query::Answer;
use isola_platform::PlatformMemory;
use spin::Once;

/// The parts of the memory that the application knows.
type PartsService = fn() -> Vec<MemoryPart>;

static SERVICE: Once<PartsService> = Once::new();

/// Makes `service` name the uses that the application knows, when the host tool asks for the account of the memory: objects of
/// the heap, none of them in two parts. It runs on the first core. Only the first call counts.
pub fn serve_memory_parts(service: PartsService) {
    SERVICE.call_once(|| service);
}

/// Returns all parts of the cell's memory; `None` if the cell has no memory of its own. To be called on the first core.
pub fn memory_parts() -> Option<Vec<MemoryPart>> {
    let service = SERVICE.get();
    let more = service.map(|service| service()).unwrap_or_default();
    Some(parts_of(&platform().memory_by_use()?, cached_bytes(), more))
}

/// Returns the parts: those of the platform, and those of objects of the heap, the last of which is the rest.
fn parts_of(memory: &PlatformMemory, cached_blocks: usize, more: Vec<MemoryPart>) -> Vec<MemoryPart> {
    let mut parts = Vec::from([
        MemoryPart::free("free", memory.free),
        MemoryPart::used("records of pages", memory.records),
        MemoryPart::used("unused parts of the heap", memory.unused_objects),
        MemoryPart::used("regions and stacks of fibers", memory.regions),
        MemoryPart::used("receive buffers", memory.receive_buffers),
        MemoryPart::used("page tables of programs", memory.program_tables),
        MemoryPart::cached("cached blocks of devices", cached_blocks),
    ]);
    parts.extend(more);
    let known: u64 = parts.iter().map(|part| part.bytes).sum();
    parts.push(MemoryPart::used("other objects", (memory.total as u64).saturating_sub(known) as usize));
    parts.retain(|part| part.bytes > 0);
    parts
}

/// Answers a query for the account.
pub(crate) fn answer(answer: Answer) {
    let Some(parts) = memory_parts() else {
        return answer.begin(0, [AnswerRecord::Refused("it has no memory of its own".into())]);
    };
    answer.begin(1, [AnswerRecord::MemoryParts(parts)]);
    answer.end_core([], &AnswerRecord::Done { core: 0, connections: 0, half_open: 0, time_wait: 0 });
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_abi::query::MemoryKind;

    #[test]
    fn the_parts_are_all_of_the_memory_and_the_rest_is_other_objects() {
        let memory = PlatformMemory {
            total: 1000,
            free: 400,
            records: 10,
            unused_objects: 20,
            regions: 30,
            receive_buffers: 40,
            program_tables: 0,
        };
        let parts = parts_of(&memory, 50, Vec::from([MemoryPart::cached("pages of files", 60)]));
        assert_eq!(parts.iter().map(|part| part.bytes).sum::<u64>(), 1000);
        assert_eq!(parts.last(), Some(&MemoryPart::used("other objects", 390)));
        assert!(parts.iter().all(|part| part.bytes > 0), "a use without memory is left out");
        let cached = parts.iter().filter(|part| part.kind == MemoryKind::Cached);
        assert_eq!(cached.map(|part| part.bytes).sum::<u64>(), 110);
    }
}
