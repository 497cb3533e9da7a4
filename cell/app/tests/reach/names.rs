//! No path of `isola` leads to the machine.
#![forbid(unsafe_code)]

// The platform's module, which `isola` once exported.
use isola::on; //~ E0603
use isola::on::bare; //~ E0603 E0432
use isola::on::CellHeap; //~ E0603

// The macros' module exports only the items that the macros need.
use isola::__private::bare; //~ E0432
use isola::__private::machine; //~ E0432
use isola::__private::start; //~ E0432
use isola::__private::AUTHORITY; //~ E0432

// Fault injection is a crate of its own, on which only images for tests depend.
use isola::fault_injection::inject; //~ E0432
use isola_fault_injection::send_reserved_vector; //~ E0432
use isola_fault_injection::offer_and_keep; //~ E0432

// The platform's value, which gives access to all state of a core.
use isola::ebbs::platform; //~ E0432
use isola::ebbs::CoreBlock; //~ E0432
use isola::ebbs::VcoreIdentity; //~ E0432
use isola::ebbs::CellTable; //~ E0432
use isola::events::platform; //~ E0432
use isola::events::isola_ebbs; //~ E0432
use isola::fibers::platform; //~ E0432
use isola::net::platform; //~ E0432
use isola::rcu::platform; //~ E0432
use isola::messenger::platform; //~ E0432
use isola::resolver::platform; //~ E0432
use isola::memory::Pages; //~ E0432
use isola::memory::Heap; //~ E0432
use isola::regions::install; //~ E0432
use isola::regions::AddressWindow; //~ E0432

// Packages below.
use isola_abi::report::Report; //~ E0433
use isola_bare::platform; //~ E0432
use isola_drivers::net; //~ E0432
use isola_machine::authority::Authority; //~ E0433

fn end_the_machine() {
    isola::on::bare::machine::power::exit(0); //~ E0603 E0433
    isola::__private::bare::machine::power::reset(); //~ E0433
    isola_machine::power::exit(0); //~ E0433
    isola_machine::power::reset(); //~ E0433
}

fn interrupt_other_cells() {
    isola_machine::apic::local::send(0, 18); //~ E0433
    isola_machine::apic::local::send_non_maskable(0); //~ E0433
    isola::fault_injection::send_reserved_vector(0, 18); //~ E0433
}

fn take_the_machine() {
    isola_machine::restart::restart(); //~ E0433
    isola_machine::boot::own_machine(); //~ E0433
    isola_machine::cpu::set_gs_base(0); //~ E0433
    isola_machine::dma::set_region_area(0); //~ E0433
    isola_machine::interrupts::set_exception_handler(0); //~ E0433
}

fn forge_an_authority() {
    isola_machine::authority::Authority(()); //~ E0433
    isola_machine::authority::Authority::assume(); //~ E0433
    isola::__private::Authority(()); //~ E0425
}

fn main() {}
