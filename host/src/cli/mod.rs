//! The command line: its verbs, one file per verb.
//!
//! Exit codes: 0 success; 1 the command was rejected or failed; 2 the command line is invalid. `isola run` in the
//! foreground returns the cell's own exit code; [`run`] lists its codes for a cell without one.

mod attach;
mod borrow;
mod capture;
mod complete;
mod cores;
mod cp;
mod demo;
mod doctor;
mod down;
mod elastic;
mod events;
mod exec;
mod failure;
mod follow;
mod grid;
mod hosted;
mod image;
mod inspect;
mod interrupt;
mod logs;
mod memory_parts;
mod metrics;
mod network;
mod output_file;
mod port;
mod processes;
mod profile;
mod ps;
mod resize;
mod rm;
mod root;
mod rootfs;
mod run;
mod show;
mod standalone;
mod start;
mod stats;
mod stop;
mod stream;
mod switch;
mod top;
mod trace;
mod up;
mod usage_error;
mod version;
mod volume;

use crate::image::ImageStore;
use crate::machine::state::{MachineDir, StateRoot};
use crate::names::{DEFAULT_MACHINE, MachineName};
use crate::output::{Format, Output, Verbosity};
use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::CompleteEnv;
use failure::Failure;
use std::process::ExitCode;

/// Divides a machine into cells, each a whole operating system that runs one service.
#[derive(Debug, Parser)]
#[command(name = "isola", version, max_term_width = 100, after_help = EXAMPLES, propagate_version = false)]
#[command(subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    globals: Globals,
    #[command(subcommand)]
    verb: Verb,
}

const EXAMPLES: &str = "\
Examples:
  isola up --cores 4 --memory 1G          start a machine
  isola run -d --name kv --cores 2 --memory 64M -p 11211:11211 kv
                                          run a key-value server in a cell of it
  isola ps                                see what runs
  isola top                               watch the load of the cells
  isola stats kv                          all its counts since its start, and its overhead
  isola trace kv -w kv.pftrace            record what its cores do, for ui.perfetto.dev
  isola profile kv                        the functions in which its cores spend their time
  isola metrics --listen                  serve metrics for Prometheus
  isola logs -f kv                        follow its output
  isola exec -it web -- sh                execute a command in a cell with Linux programs
  isola resize kv --memory +64M           give a running cell more memory
  isola stop kv && isola rm kv            end the cell, and remove its records
  isola elastic kv --p99 2ms..5ms         borrow cores from cells that lend, according to the load
  isola grid set kv processor --policy wfq
                                          divide its cores among its activities by weight
  isola down                              end the machine
  isola demo                              see all of it in a minute

Exit codes: 0 success, 1 rejected or failed, 2 the command line is invalid; `isola run` has more: see its help.
Environment: ISOLA_MACHINE, ISOLA_IMAGES (a folder of images), ISOLA_STATE (the folder of the machines' records), \
ISOLA_QEMU (the QEMU to use), ISOLA_VOLUMES (the folder of volumes), NO_COLOR.";

#[derive(Debug, Args)]
struct Globals {
    /// The machine.
    #[arg(long, global = true, value_name = "MACHINE", env = "ISOLA_MACHINE", default_value = DEFAULT_MACHINE)]
    #[arg(add = complete::machines(), hide_env_values = true)]
    on: MachineName,
    /// The format of answers.
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Table)]
    output: Format,
    /// Prints no notes; lists print names only.
    #[arg(short, long, global = true)]
    quiet: bool,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Up(up::Arguments),
    Down(down::Arguments),
    Run(Box<run::Arguments>),
    Ps(ps::Arguments),
    Exec(exec::Arguments),
    Cp(cp::Arguments),
    Logs(logs::Arguments),
    Start(start::Arguments),
    Stop(stop::StopArguments),
    Kill(stop::KillArguments),
    Resize(resize::Arguments),
    Rm(rm::Arguments),
    Inspect(inspect::Arguments),
    Image(image::Arguments),
    Volume(volume::Arguments),
    Rootfs(rootfs::Arguments),
    Events(events::Arguments),
    Top(top::Arguments),
    Stats(stats::Arguments),
    Metrics(metrics::Arguments),
    Elastic(elastic::Arguments),
    Borrow(borrow::Arguments),
    Grid(grid::Arguments),
    Capture(capture::Arguments),
    Trace(trace::Arguments),
    Profile(profile::Arguments),
    Port(port::PortArguments),
    Publish(port::PublishArguments),
    Doctor(doctor::Arguments),
    Demo(demo::Arguments),
    Completion(complete::Arguments),
    Version(version::Arguments),
    #[command(hide = true)]
    Switch(switch::Arguments),
}

/// The common environment of all verbs.
struct Context {
    root: StateRoot,
    machine: MachineName,
    images: ImageStore,
    output: Output,
}

impl Context {
    /// Returns the folder of the machine that the command refers to.
    fn dir(&self) -> MachineDir {
        self.root.machine(&self.machine)
    }
}

/// Runs the command in the arguments of this process.
pub fn main() -> ExitCode {
    CompleteEnv::with_factory(Cli::command).complete();
    let words: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let cli = Cli::try_parse().unwrap_or_else(|error| usage_error::explained(error, &words).exit());
    let verbosity = if cli.globals.quiet { Verbosity::Quiet } else { Verbosity::Notes };
    let output = Output { format: cli.globals.output, verbosity };
    let result = context(cli.globals, output).and_then(|context| dispatch(cli.verb, &context));
    match result {
        Ok(code) => code,
        Err(failure) => failure.report(&output),
    }
}

fn context(globals: Globals, output: Output) -> Result<Context, Failure> {
    let mut root = StateRoot::from_environment()?;
    if output.verbosity == Verbosity::Notes {
        root = root.with_notice(|text| anstream::eprintln!("note: {text}"));
    }
    Ok(Context { root, machine: globals.on, images: ImageStore::from_environment(), output })
}

fn dispatch(verb: Verb, context: &Context) -> Result<ExitCode, Failure> {
    match verb {
        Verb::Up(arguments) => up::up(context, arguments),
        Verb::Down(arguments) => down::down(context, &arguments),
        Verb::Run(arguments) => run::run(context, *arguments),
        Verb::Ps(arguments) => ps::ps(context, &arguments),
        Verb::Exec(arguments) => exec::exec(context, arguments),
        Verb::Cp(arguments) => cp::cp(context, &arguments),
        Verb::Logs(arguments) => logs::logs(context, &arguments),
        Verb::Start(arguments) => start::start(context, &arguments),
        Verb::Stop(arguments) => stop::stop(context, &arguments),
        Verb::Kill(arguments) => stop::kill(context, &arguments),
        Verb::Resize(arguments) => resize::resize(context, &arguments),
        Verb::Rm(arguments) => rm::rm(context, &arguments),
        Verb::Inspect(arguments) => inspect::inspect(context, &arguments),
        Verb::Image(arguments) => image::image(context, &arguments),
        Verb::Volume(arguments) => volume::volume(context, &arguments),
        Verb::Rootfs(arguments) => rootfs::rootfs(context, &arguments),
        Verb::Top(arguments) => top::top(context, &arguments),
        Verb::Stats(arguments) => stats::stats(context, &arguments),
        Verb::Metrics(arguments) => metrics::metrics(context, &arguments),
        Verb::Borrow(arguments) => borrow::borrow(context, &arguments),
        Verb::Grid(arguments) => grid::grid(context, &arguments),
        Verb::Elastic(arguments) => elastic::elastic(context, arguments),
        Verb::Capture(arguments) => capture::capture(context, &arguments),
        Verb::Trace(arguments) => trace::trace(context, &arguments),
        Verb::Profile(arguments) => profile::profile(context, &arguments),
        Verb::Events(arguments) => events::events(context, &arguments),
        Verb::Port(arguments) => port::port(context, &arguments),
        Verb::Publish(arguments) => port::publish(context, &arguments),
        Verb::Doctor(arguments) => doctor::doctor(context, &arguments),
        Verb::Demo(arguments) => demo::demo(context, &arguments),
        Verb::Completion(arguments) => complete::completion(&arguments),
        Verb::Version(arguments) => version::version(context, &arguments),
        Verb::Switch(arguments) => switch::switch(&arguments),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_paragraph_of_help_is_one_line() {
        let mut commands = vec![Cli::command()];
        while let Some(command) = commands.pop() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in help.lines().filter(|line| !line.is_empty() && !line.starts_with(' ')) {
                assert!(line.ends_with(['.', ':']), "{}: {line}", command.get_name());
            }
            commands.extend(command.get_subcommands().cloned());
        }
    }
}
