//! Processes and their relations: parents, process groups, sessions, and the states that `wait` reports.
//!
//! A pure data structure: its methods return the processes that a change concerns, and the caller sends their signals.

use crate::Errno;
use crate::exit_status::ExitStatus;
use crate::signals::Signal;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Ids are below this number (`/proc/sys/kernel/pid_max`).
pub const MOST_IDS: u32 = 32_768;
/// The first process, which becomes the parent of orphans.
pub const INIT: u32 = 1;

/// The processes of a cell. `P` is the handle of a process.
#[derive(Debug)]
pub struct Family<P> {
    members: BTreeMap<u32, Member<P>>,
    /// By thread id: its process.
    threads: BTreeMap<u32, u32>,
    last_id: u32,
}

#[derive(Debug)]
struct Member<P> {
    process: P,
    parent: u32,
    group: u32,
    session: u32,
    phase: Phase,
    /// A stop or continuation that the parent has not waited for.
    report: Option<ExitStatus>,
    /// The signal that the parent gets at the end; `None` for none.
    exit_signal: Option<Signal>,
    has_executed: bool,
    /// Whether orphans among its descendants become its children.
    is_reaper: bool,
    /// Its own and its waited-for children's processor time, in nanoseconds.
    time: ProcessorTime,
    children_time: ProcessorTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    Stopped,
    Ended(ExitStatus),
}

/// Processor time, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessorTime {
    /// In user mode.
    pub user_ns: u64,
    /// In system calls and page faults.
    pub system_ns: u64,
}

impl ProcessorTime {
    /// Returns the sum.
    pub const fn plus(self, other: Self) -> Self {
        Self { user_ns: self.user_ns + other.user_ns, system_ns: self.system_ns + other.system_ns }
    }
}

/// The children for which a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildSelector {
    /// Any child.
    Any,
    /// The child with this id.
    Process(u32),
    /// The children in this process group.
    Group(u32),
}

/// The changes for which a call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitOptions {
    /// The end of a child.
    pub exited: bool,
    /// A stop.
    pub stopped: bool,
    /// A continuation.
    pub continued: bool,
    /// Whether the change stays to be waited for (`WNOWAIT`).
    pub keeps: bool,
}

/// A child whose state has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitedChild<P> {
    /// Its id.
    pub pid: u32,
    /// Its handle.
    pub process: P,
    /// Its state.
    pub status: ExitStatus,
    /// Its processor time with that of its children.
    pub time: ProcessorTime,
}

/// A process that gets a signal because of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChildNotice<P> {
    /// The parent.
    pub parent: P,
    /// The child.
    pub child: u32,
    /// The child's state.
    pub status: ExitStatus,
    /// The signal; `None` if only waiting threads are woken.
    pub signal: Option<Signal>,
}

impl<P: Clone> Default for Family<P> {
    fn default() -> Self {
        Self { members: BTreeMap::new(), threads: BTreeMap::new(), last_id: 0 }
    }
}

impl<P: Clone> Family<P> {
    /// Returns an id that no process, thread, group or session has.
    fn new_id(&mut self) -> Result<u32, Errno> {
        for _ in 1..MOST_IDS {
            self.last_id = if self.last_id + 1 < MOST_IDS { self.last_id + 1 } else { 2 };
            let id = self.last_id;
            let is_used = self.threads.contains_key(&id)
                || self.members.contains_key(&id)
                || self.members.values().any(|member| member.group == id || member.session == id);
            if !is_used {
                return Ok(id);
            }
        }
        Err(Errno::EAGAIN)
    }

    /// Adds a process with its first thread, a child of `parent` (none for the first process). `make` creates it with its
    /// id.
    ///
    /// # Errors
    /// [`Errno::EAGAIN`] if all ids are in use; the error of `make`.
    pub fn add_process(
        &mut self,
        parent: Option<u32>,
        exit_signal: Option<Signal>,
        make: impl FnOnce(u32) -> Result<P, Errno>,
    ) -> Result<P, Errno> {
        let id = self.new_id()?;
        let (group, session) = parent
            .and_then(|parent| self.members.get(&parent))
            .map_or((id, id), |parent| (parent.group, parent.session));
        let process = make(id)?;
        let member = Member {
            process: process.clone(),
            parent: parent.unwrap_or(0),
            group,
            session,
            phase: Phase::Running,
            report: None,
            exit_signal,
            has_executed: false,
            is_reaper: false,
            time: ProcessorTime::default(),
            children_time: ProcessorTime::default(),
        };
        self.members.insert(id, member);
        self.threads.insert(id, id);
        Ok(process)
    }

    /// Adds a thread to a process, and returns its id.
    ///
    /// # Errors
    /// [`Errno::EAGAIN`] if all ids are in use.
    pub fn add_thread(&mut self, pid: u32) -> Result<u32, Errno> {
        let id = self.new_id()?;
        self.threads.insert(id, pid);
        Ok(id)
    }

    /// Removes an ended thread. The id of the first thread stays in use as that of the process.
    pub fn remove_thread(&mut self, tid: u32) {
        self.threads.remove(&tid);
    }

    /// Returns the process of a thread.
    pub fn process_of_thread(&self, tid: u32) -> Option<(u32, P)> {
        let pid = *self.threads.get(&tid)?;
        Some((pid, self.process(pid)?))
    }

    /// Returns a process, ended or not.
    pub fn process(&self, pid: u32) -> Option<P> {
        self.members.get(&pid).map(|member| member.process.clone())
    }

    /// Returns all processes in ascending order of their ids.
    pub fn processes(&self) -> impl Iterator<Item = (u32, &P)> {
        self.members.iter().map(|(pid, member)| (*pid, &member.process))
    }

    /// Returns the id that was given out last.
    pub fn latest_id(&self) -> u32 {
        self.last_id
    }

    /// Returns the parent's id; 0 if the process has none.
    pub fn parent(&self, pid: u32) -> u32 {
        self.members.get(&pid).map_or(0, |member| member.parent)
    }

    /// Returns the process group.
    ///
    /// # Errors
    /// [`Errno::ESRCH`].
    pub fn group(&self, pid: u32) -> Result<u32, Errno> {
        self.members.get(&pid).map(|member| member.group).ok_or(Errno::ESRCH)
    }

    /// Returns the session.
    ///
    /// # Errors
    /// [`Errno::ESRCH`].
    pub fn session(&self, pid: u32) -> Result<u32, Errno> {
        self.members.get(&pid).map(|member| member.session).ok_or(Errno::ESRCH)
    }

    /// Returns the processes of a group that have not ended.
    pub fn in_group(&self, group: u32) -> Vec<P> {
        let alive = |member: &&Member<P>| member.group == group && !matches!(member.phase, Phase::Ended(_));
        self.members.values().filter(alive).map(|member| member.process.clone()).collect()
    }

    /// Returns whether a process group is orphaned: no member has a parent in another group of the same session, which could
    /// continue it after a stop.
    pub fn is_orphaned(&self, group: u32) -> bool {
        !self.members.values().any(|member| {
            member.group == group
                && !matches!(member.phase, Phase::Ended(_))
                && self
                    .members
                    .get(&member.parent)
                    .is_some_and(|parent| parent.session == member.session && parent.group != group)
        })
    }

    /// Returns whether a member of a group is stopped.
    pub fn has_stopped(&self, group: u32) -> bool {
        self.members.values().any(|member| member.group == group && member.phase == Phase::Stopped)
    }

    /// Returns the groups that the end of a process may make orphaned: its own, and those of its children.
    pub fn groups_beside(&self, pid: u32) -> Vec<u32> {
        let mut groups: Vec<u32> = self
            .members
            .iter()
            .filter(|(other, member)| **other == pid || member.parent == pid)
            .map(|(_, member)| member.group)
            .collect();
        groups.sort_unstable();
        groups.dedup();
        groups
    }

    /// Records that a process has executed a program: its parent can no longer change its group.
    pub fn executed(&mut self, pid: u32) {
        if let Some(member) = self.members.get_mut(&pid) {
            member.has_executed = true;
        }
    }

    /// `setsid`: makes the process the leader of a new session and group.
    ///
    /// # Errors
    /// [`Errno::EPERM`] if it leads a group, or a group with its id exists.
    pub fn new_session(&mut self, pid: u32) -> Result<u32, Errno> {
        if self.members.values().any(|member| member.group == pid) {
            return Err(Errno::EPERM);
        }
        let member = self.members.get_mut(&pid).ok_or(Errno::ESRCH)?;
        member.group = pid;
        member.session = pid;
        Ok(pid)
    }

    /// `setpgid`: moves `pid`, the caller or one of its children, to a group of the caller's session.
    ///
    /// # Errors
    /// Those of setpgid(2).
    pub fn set_group(&mut self, caller: u32, pid: u32, group: u32) -> Result<(), Errno> {
        let session = self.session(caller)?;
        let member = self.members.get(&pid).ok_or(Errno::ESRCH)?;
        let is_child = member.parent == caller;
        match () {
            () if pid != caller && !is_child => return Err(Errno::ESRCH),
            () if is_child && pid != caller && member.session != session => return Err(Errno::EPERM),
            () if is_child && pid != caller && member.has_executed => return Err(Errno::EACCES),
            () if member.session == pid => return Err(Errno::EPERM),
            () => {}
        }
        let exists =
            self.members.values().any(|other| other.group == group && other.session == member.session);
        if group != pid && !exists {
            return Err(Errno::EPERM);
        }
        self.members.entry(pid).and_modify(|member| member.group = group);
        Ok(())
    }

    /// Returns the children of a process that have not ended.
    pub fn children(&self, pid: u32) -> Vec<P> {
        let is_child = |member: &&Member<P>| member.parent == pid && !matches!(member.phase, Phase::Ended(_));
        self.members.values().filter(is_child).map(|member| member.process.clone()).collect()
    }

    /// Makes a process the parent of orphans among its descendants, or no longer (`PR_SET_CHILD_SUBREAPER`).
    pub fn set_reaper(&mut self, pid: u32, is_reaper: bool) {
        if let Some(member) = self.members.get_mut(&pid) {
            member.is_reaper = is_reaper;
        }
    }

    /// Returns whether a process is the parent of orphans among its descendants.
    pub fn is_reaper(&self, pid: u32) -> bool {
        self.members.get(&pid).is_some_and(|member| member.is_reaper)
    }

    /// Returns the new parent of a process's orphans: the next ancestor that wants them, or the first process.
    fn reaper(&self, pid: u32) -> u32 {
        let mut ancestor = self.parent(pid);
        while let Some(member) = self.members.get(&ancestor) {
            if member.is_reaper && !matches!(member.phase, Phase::Ended(_)) {
                return ancestor;
            }
            ancestor = member.parent;
        }
        INIT
    }

    /// Returns the signal that the parent of a process gets at its end.
    pub fn exit_signal(&self, pid: u32) -> Option<Signal> {
        self.members.get(&pid).and_then(|member| member.exit_signal)
    }

    /// Records the end of a process, and gives its children to [another](Self::set_reaper) one. Returns whom to notify: its
    /// parent, and the new parent for each of its children that had ended.
    pub fn end(&mut self, pid: u32, status: ExitStatus, time: ProcessorTime) -> Vec<ChildNotice<P>> {
        let mut notices = Vec::new();
        let reaper = self.reaper(pid);
        let new_parent = self.members.get(&reaper).map(|member| member.process.clone());
        for (child, member) in &mut self.members {
            if member.parent != pid || pid == INIT {
                continue;
            }
            member.parent = reaper;
            member.exit_signal = member.exit_signal.map(|_| Signal::SIGCHLD);
            if let (Phase::Ended(status), Some(parent)) = (member.phase, &new_parent) {
                let (parent, signal) = (parent.clone(), member.exit_signal);
                notices.push(ChildNotice { parent, child: *child, status, signal });
            }
        }
        let Some(member) = self.members.get_mut(&pid) else { return notices };
        member.phase = Phase::Ended(status);
        member.report = None;
        member.time = time;
        let (parent, signal) = (member.parent, member.exit_signal);
        if let Some(parent) = self.members.get(&parent) {
            notices.push(ChildNotice { parent: parent.process.clone(), child: pid, status, signal });
        }
        notices
    }

    /// Removes an ended process without its parent's wait, as for a parent that ignores SIGCHLD.
    pub fn reap(&mut self, pid: u32) {
        if self.members.get(&pid).is_some_and(|member| matches!(member.phase, Phase::Ended(_))) {
            self.members.remove(&pid);
            self.threads.remove(&pid);
        }
    }

    /// Removes a process that could not be started. The next one gets its id.
    pub fn cancel(&mut self, pid: u32) {
        self.members.remove(&pid);
        self.threads.remove(&pid);
        self.last_id = pid.saturating_sub(1);
    }

    /// Records that a signal stopped or continued a process. Returns its parent to notify; `None` if nothing changed.
    pub fn stop_or_continue(&mut self, pid: u32, status: ExitStatus) -> Option<ChildNotice<P>> {
        let member = self.members.get_mut(&pid)?;
        let phase = match status {
            ExitStatus::Stopped(_) => Phase::Stopped,
            _ => Phase::Running,
        };
        if member.phase == phase || matches!(member.phase, Phase::Ended(_)) {
            return None;
        }
        member.phase = phase;
        member.report = Some(status);
        let parent = member.parent;
        let parent = self.members.get(&parent)?.process.clone();
        Some(ChildNotice { parent, child: pid, status, signal: Some(Signal::SIGCHLD) })
    }

    /// Forgets a stop or continuation that the parent has not waited for.
    pub fn take_report(&mut self, pid: u32) -> Option<ExitStatus> {
        self.members.get_mut(&pid)?.report.take()
    }

    /// Returns whether a process is stopped.
    pub fn is_stopped(&self, pid: u32) -> bool {
        self.members.get(&pid).is_some_and(|member| member.phase == Phase::Stopped)
    }

    /// Returns whether a process has ended and waits for its parent.
    pub fn is_zombie(&self, pid: u32) -> bool {
        self.members.get(&pid).is_some_and(|member| matches!(member.phase, Phase::Ended(_)))
    }

    /// Finds a child that has changed. `Ok(None)` if none has yet.
    ///
    /// # Errors
    /// [`Errno::ECHILD`] if there is no such child.
    pub fn wait(
        &mut self,
        parent: u32,
        selector: ChildSelector,
        options: WaitOptions,
    ) -> Result<Option<WaitedChild<P>>, Errno> {
        let selected = |pid: u32, member: &Member<P>| {
            member.parent == parent
                && match selector {
                    ChildSelector::Any => true,
                    ChildSelector::Process(wanted) => pid == wanted,
                    ChildSelector::Group(group) => member.group == group,
                }
        };
        let mut has_child = false;
        let mut found = None;
        for (pid, member) in &self.members {
            if !selected(*pid, member) {
                continue;
            }
            has_child = true;
            let status = match (member.phase, member.report) {
                (Phase::Ended(status), _) if options.exited => Some(status),
                (_, Some(status @ ExitStatus::Stopped(_))) if options.stopped => Some(status),
                (_, Some(status @ ExitStatus::Continued)) if options.continued => Some(status),
                _ => None,
            };
            if let Some(status) = status {
                found = Some((*pid, status));
                break;
            }
        }
        let Some((pid, status)) = found else {
            return if has_child { Ok(None) } else { Err(Errno::ECHILD) };
        };
        let member = &self.members[&pid];
        let time = member.time.plus(member.children_time);
        let child = WaitedChild { pid, process: member.process.clone(), status, time };
        if !options.keeps {
            match self.members.get_mut(&pid) {
                Some(member) if !matches!(member.phase, Phase::Ended(_)) => member.report = None,
                _ => {
                    self.reap(pid);
                    if let Some(parent) = self.members.get_mut(&parent) {
                        parent.children_time = parent.children_time.plus(time);
                    }
                }
            }
        }
        Ok(Some(child))
    }

    /// Returns the processor time of the children that a process has waited for.
    pub fn children_time(&self, pid: u32) -> ProcessorTime {
        self.members.get(&pid).map_or_else(ProcessorTime::default, |member| member.children_time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXITED: WaitOptions = WaitOptions { exited: true, stopped: false, continued: false, keeps: false };
    const ALL: WaitOptions = WaitOptions { exited: true, stopped: true, continued: true, keeps: false };
    const TIME: ProcessorTime = ProcessorTime { user_ns: 5, system_ns: 7 };

    fn add(family: &mut Family<u32>, parent: u32) -> u32 {
        family.add_process(Some(parent), Some(Signal::SIGCHLD), Ok).unwrap()
    }

    fn family() -> Family<u32> {
        let mut family = Family::default();
        assert_eq!(family.add_process(None, None, Ok), Ok(INIT));
        family
    }

    #[test]
    fn a_parent_waits_for_its_children_once() {
        let mut family = family();
        assert_eq!(family.wait(INIT, ChildSelector::Any, EXITED), Err(Errno::ECHILD));
        let canceled = add(&mut family, INIT);
        family.cancel(canceled);
        let (first, second) = (add(&mut family, INIT), add(&mut family, INIT));
        assert_eq!(first, canceled);
        assert_eq!(family.wait(INIT, ChildSelector::Any, EXITED), Ok(None));
        let status = ExitStatus::Exited(3);
        let notices = family.end(second, status, TIME);
        assert_eq!(
            notices,
            [ChildNotice { parent: INIT, child: second, status, signal: Some(Signal::SIGCHLD) }]
        );
        assert_eq!(family.wait(INIT, ChildSelector::Process(first), EXITED), Ok(None));
        let keeps = WaitOptions { keeps: true, ..EXITED };
        let child = Some(WaitedChild { pid: second, process: second, status, time: TIME });
        assert_eq!(family.wait(INIT, ChildSelector::Any, keeps), Ok(child));
        assert_eq!(family.children_time(INIT), ProcessorTime::default());
        assert_eq!(family.wait(INIT, ChildSelector::Any, EXITED), Ok(child));
        assert_eq!(family.wait(INIT, ChildSelector::Process(second), EXITED), Err(Errno::ECHILD));
        assert_eq!((family.children_time(INIT), family.process(second)), (TIME, None));
    }

    #[test]
    fn orphans_get_the_first_process_as_their_parent() {
        let mut family = family();
        let parent = add(&mut family, INIT);
        let (running, zombie) = (add(&mut family, parent), add(&mut family, parent));
        family.end(zombie, ExitStatus::Exited(0), TIME);
        let notices = family.end(parent, ExitStatus::Exited(1), TIME);
        let children: Vec<u32> = notices.iter().map(|notice| notice.child).collect();
        assert_eq!(children, [zombie, parent]);
        assert!(notices.iter().all(|notice| notice.parent == INIT));
        assert_eq!(family.parent(running), INIT);
        for pid in [parent, zombie] {
            let waited = family.wait(INIT, ChildSelector::Process(pid), EXITED).unwrap();
            assert_eq!(waited.map(|child| child.pid), Some(pid));
        }
    }

    #[test]
    fn stops_and_continuations_are_reported_once() {
        let mut family = family();
        let child = add(&mut family, INIT);
        let stopped = ExitStatus::Stopped(Signal::SIGTSTP);
        assert!(family.stop_or_continue(child, ExitStatus::Continued).is_none());
        assert!(family.stop_or_continue(child, stopped).is_some() && family.is_stopped(child));
        assert!(family.stop_or_continue(child, stopped).is_none());
        assert_eq!(family.wait(INIT, ChildSelector::Any, EXITED), Ok(None));
        let status = |family: &mut Family<u32>| {
            family.wait(INIT, ChildSelector::Any, ALL).unwrap().map(|child| child.status)
        };
        assert_eq!((status(&mut family), status(&mut family)), (Some(stopped), None));
        family.stop_or_continue(child, ExitStatus::Continued);
        assert_eq!((status(&mut family), status(&mut family)), (Some(ExitStatus::Continued), None));
        family.end(child, ExitStatus::Exited(0), TIME);
        assert!(family.stop_or_continue(child, stopped).is_none(), "it has ended");
    }

    #[test]
    fn groups_and_sessions_follow_setpgid_and_setsid() {
        let mut family = family();
        let (shell, other) = (add(&mut family, INIT), add(&mut family, INIT));
        assert_eq!(family.new_session(INIT), Err(Errno::EPERM), "it leads a group");
        assert_eq!(family.new_session(shell), Ok(shell));
        let (job, late) = (add(&mut family, shell), add(&mut family, shell));
        assert_eq!(family.set_group(shell, job, job), Ok(()));
        assert_eq!(family.set_group(shell, late, job), Ok(()));
        assert_eq!(family.in_group(job).len(), 2);
        family.executed(late);
        assert_eq!(family.set_group(shell, late, late), Err(Errno::EACCES));
        assert_eq!(family.set_group(late, late, late), Ok(()));
        assert_eq!(family.set_group(shell, other, shell), Err(Errno::ESRCH), "no child");
        assert_eq!(family.set_group(INIT, shell, INIT), Err(Errno::EPERM), "another session");
        assert_eq!(family.set_group(shell, shell, shell), Err(Errno::EPERM), "a session's leader");
        assert_eq!(family.set_group(job, job, 999), Err(Errno::EPERM), "no such group");
        assert_eq!(family.set_group(job, job, INIT), Err(Errno::EPERM), "a group of another session");
        let group = ChildSelector::Group(job);
        family.end(job, ExitStatus::Exited(0), TIME);
        assert_eq!(family.wait(shell, group, EXITED).unwrap().map(|child| child.pid), Some(job));
    }

    #[test]
    fn orphans_go_to_the_next_reaper_that_lives() {
        let mut family = family();
        let reaper = add(&mut family, INIT);
        let other = add(&mut family, reaper);
        let parent = add(&mut family, other);
        let (orphan, second) = (add(&mut family, parent), add(&mut family, parent));
        family.set_reaper(reaper, true);
        family.set_reaper(other, true);
        assert_eq!(family.children(parent), [orphan, second]);
        family.end(second, ExitStatus::Exited(0), TIME);
        let notices = family.end(parent, ExitStatus::Exited(0), TIME);
        assert_eq!(family.parent(orphan), other);
        assert!(notices.iter().any(|notice| notice.parent == other && notice.child == second));
        family.set_reaper(other, false);
        family.end(other, ExitStatus::Exited(0), TIME);
        assert_eq!((family.parent(orphan), family.is_reaper(reaper)), (reaper, true));
        family.end(reaper, ExitStatus::Exited(0), TIME);
        assert_eq!(family.parent(orphan), INIT);
    }

    #[test]
    fn ids_are_not_used_twice() {
        let mut family = family();
        let leader = add(&mut family, INIT);
        let member = add(&mut family, leader);
        family.set_group(leader, leader, leader).unwrap();
        family.set_group(leader, member, leader).unwrap();
        family.end(leader, ExitStatus::Exited(0), TIME);
        family.reap(leader);
        let mut count = 0;
        while let Ok(tid) = family.add_thread(INIT) {
            assert!(tid != leader && tid != member && tid != INIT);
            count += 1;
        }
        assert_eq!(count, MOST_IDS - 1 - 3);
        assert_eq!(family.add_process(Some(INIT), None, Ok), Err(Errno::EAGAIN));
        family.remove_thread(500);
        assert_eq!(family.add_thread(INIT), Ok(500));
        assert_eq!(family.process_of_thread(500), Some((INIT, INIT)));
    }
}
