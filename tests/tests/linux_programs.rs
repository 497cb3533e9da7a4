//! Debian's programs in cells: scripts, whose output and exit code are compared with those on this host.

use isola_need::{Need, need};
use isola_tests::isola::Isola;
use isola_tests::linux_root::LinuxRoot;
use std::path::Path;
use std::process::Command;

/// Programs of this host that the root file system has.
const PROGRAMS: &[&str] = &[
    "bash",
    "dash",
    "cat",
    "ls",
    "cp",
    "mv",
    "rm",
    "mkdir",
    "rmdir",
    "ln",
    "touch",
    "chmod",
    "stat",
    "wc",
    "sort",
    "uniq",
    "cut",
    "tr",
    "head",
    "tail",
    "tee",
    "seq",
    "date",
    "dd",
    "du",
    "md5sum",
    "sha256sum",
    "base64",
    "od",
    "split",
    "comm",
    "join",
    "paste",
    "expr",
    "env",
    "id",
    "nproc",
    "readlink",
    "realpath",
    "mktemp",
    "mkfifo",
    "truncate",
    "sleep",
    "true",
    "false",
    "echo",
    "printf",
    "test",
    "basename",
    "dirname",
    "nl",
    "tac",
    "rev",
    "fold",
    "factor",
    "xargs",
    "find",
    "grep",
    "sed",
    "mawk",
    "tar",
    "gzip",
    "xz",
    "cmp",
    "diff",
    "perl",
    "sqlite3",
    "git",
    "python3.11",
    "gcc-12",
    "as",
    "ld",
    "strace",
    "gdb",
];

/// Folders of this host that these programs use.
const FOLDERS: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu/perl-base",
    "/usr/share/git-core/templates",
    "/usr/lib/python3.11",
    "/usr/lib/gcc/x86_64-linux-gnu/12/include",
    "/usr/include",
];

/// Further files of gcc.
const FILES: &[&str] = &[
    "/usr/lib/gcc/x86_64-linux-gnu/12/crtbegin.o",
    "/usr/lib/gcc/x86_64-linux-gnu/12/crtend.o",
    "/usr/lib/gcc/x86_64-linux-gnu/12/crtbeginS.o",
    "/usr/lib/gcc/x86_64-linux-gnu/12/crtendS.o",
    "/usr/lib/gcc/x86_64-linux-gnu/12/libgcc.a",
    "/usr/lib/gcc/x86_64-linux-gnu/12/libgcc_s.so",
    "/usr/lib/gcc/x86_64-linux-gnu/12/liblto_plugin.so",
    "/usr/lib/x86_64-linux-gnu/crt1.o",
    "/usr/lib/x86_64-linux-gnu/Scrt1.o",
    "/usr/lib/x86_64-linux-gnu/crti.o",
    "/usr/lib/x86_64-linux-gnu/crtn.o",
    "/usr/lib/x86_64-linux-gnu/libc.so",
    "/usr/lib/x86_64-linux-gnu/libc_nonshared.a",
    "/usr/lib/x86_64-linux-gnu/libgcc_s.so.1",
];

/// Programs that gcc starts, with the libraries that they are linked with.
const OF_GCC: &[&str] =
    &["/usr/lib/gcc/x86_64-linux-gnu/12/cc1", "/usr/lib/gcc/x86_64-linux-gnu/12/collect2"];

/// The scripts: a name, the cell's cores, and the commands, which run in an empty folder.
const SCRIPTS: &[(&str, &str, &str)] = &[
    (
        "bash",
        "1",
        r#"
        declare -A map; for word in one two three two; do ((map[$word]++)); done
        for word in "${!map[@]}"; do echo "$word ${map[$word]}"; done | sort
        add() { local sum=0 i; for i; do ((sum += i)); done; echo $sum; }; add {1..100}
        (exit 3); echo "status $?"; false | true; echo "${PIPESTATUS[@]}"
        trap 'echo caught' USR1; kill -USR1 $$; trap 'echo bye' EXIT
        cat <<< "here $((6 * 7))"; diff <(seq 3) <(seq 2 4)
        bash -c 'kill -TERM $$'; echo "killed $?"; sleep 0.1 & wait $!; echo "waited $?"; echo {a,b}{1,2}; [[ abc =~ ^a(.)c$ ]] && echo "${BASH_REMATCH[1]}"
        set -o pipefail; seq 100000 | head -1; echo $?; ulimit -n 20; for i in 5 6 7; do eval "exec $i<>file$i"; done
        echo to >&5; cat file5; umask 027; mkdir sub; stat -c %a sub; exit 9
        "#,
    ),
    (
        "dash",
        "1",
        r#"
        dash -c 'i=0; while [ $i -lt 5 ]; do i=$((i + 1)); echo $i; done; echo $(echo a | tr a b); exec false'; echo $?
        printf 'read x\necho "got $x"\nline\n' | dash; mkfifo pipe; echo through > pipe & cat pipe; wait
        "#,
    ),
    (
        "coreutils",
        "1",
        r#"
        seq 1 2000 > numbers; sort -rn numbers | head -3; md5sum numbers; split -n 3 numbers part.; wc -l part.* | tail -1
        dd if=numbers bs=100 count=3 skip=2 status=none | od -c | head -3; tac numbers | sha256sum; shuf() { :; }
        mkdir -p a/b/c; touch a/b/file; ln -s b a/link; ln a/b/file a/hard; ls -1F a; stat -c '%h %F %s' a/hard a/link
        cp -a a copy; find copy | sort; mv copy moved; rm -r moved; ls; truncate -s 1M sparse; du -k sparse; stat -c %b sparse
        chmod 640 numbers; stat -c '%a %n' numbers; readlink -f a/link/file | sed 's/.*\/a/a/'; comm -12 <(seq 5) <(seq 3 8)
        base64 <<< text | base64 -d; factor 1234567890; nl <<< x; fold -w 3 <<< abcdef; seq 3 | paste -s; env -i A=b env
        touch -d '2020-01-02 03:04:05 UTC' old; stat -c %Y old; date -u -d @86400; touch now; test $(($(date +%s) - $(stat -c %Y now))) -lt 9 && echo now; cp /none x; echo $?; rmdir a; echo $?
        test -x a -a ! -e none && echo yes; expr 3 \* 4; seq 10 | xargs -n 4 -P 2 echo | sort -n; tee one two <<< both; cat one two
        head -c 100000 /dev/zero | wc -c; cat /dev/full | head -c 3 | od -An -tx1; echo x > /dev/full; echo $?
        "#,
    ),
    (
        "debuggers",
        "2",
        r#"
        strace -o log -e trace=write,exit_group echo hello; cat log
        (strace -f -o log -e trace=execve -e signal=all dash -c '(exit 3); kill -USR1 $$'; echo $?) 2> /dev/null
        sed 's/^[0-9]* *//; s/0x.*vars/ENVIRONMENT/; s/si_pid=[0-9]*/si_pid/; s/, si_utime.*}/}/' log
        (sleep 100 & strace -o log -p $! & sleep 1; kill %1; wait) 2> /dev/null; grep -c SIGTERM log
        gdb -batch -nx -ex 'catch syscall 231' -ex run -ex 'print $orig_rax' -ex 'set $rdi = 7' -ex continue \
            -ex 'print $_exitcode' --args true > log 2>&1; grep '^\$' log
        gdb -batch -nx -ex starti -ex 'print $pc' -ex 'stepi 5' -ex 'tbreak *$pc' -ex run -ex 'x/2i $pc' -ex kill \
            --args true > log 2>&1 < /dev/null; grep -c '^[$=]' log
        "#,
    ),
    (
        "text",
        "1",
        r#"
        seq 1 500 | mawk '{ sum += $1; if ($1 % 100 == 0) print $1, sum } END { printf "%.3f\n", sum / NR }'
        printf 'alpha beta\ngamma delta\n' > words; sed -E 's/(\w+) (\w+)/\2 \1/; 2!s/a/A/g' words; sed -i 's/a/o/' words
        cat words; grep -rn 'm' . | sort; grep -c o words; grep -vE '^g' words; mawk 'BEGIN { while (("echo x; echo y" | getline l) > 0) n++; print n }'
        find . -name 'w*' -size -2k -exec wc -c {} +; find / -maxdepth 1 -name usr; grep -q nothing words; echo $?; cmp words words && echo same
        "#,
    ),
    (
        "archives",
        "1",
        r#"
        mkdir -p d/e; seq 1 5000 > d/numbers; ln -s numbers d/link; echo x > d/e/x; chmod 600 d/e/x
        tar cf a.tar d; tar tf a.tar | sort; tar czf a.tgz d; tar cJf a.txz d; rm -r d; tar xJf a.txz; md5sum d/numbers; stat -c %a d/e/x
        rm -r d; tar xzf a.tgz; readlink d/link; gzip -k d/numbers; gzip -dc d/numbers.gz | cmp - d/numbers && echo same
        xz -9 -k d/numbers && xz -t d/numbers.xz && xz -dc d/numbers.xz | tail -1; gzip -l d/numbers.gz | wc -l; echo bad | gzip -d; echo $?
        "#,
    ),
    (
        "sqlite3",
        "1",
        r#"
        sqlite3 a.db 'create table t(a integer primary key, b text, c real); create index i on t(b);
          with recursive n(x) as (select 1 union all select x + 1 from n where x < 2000) insert into t select x, printf("row %d", x % 37), x / 3.0 from n;
          select count(*), sum(a), round(avg(c), 3) from t; select b, count(*) from t group by b order by 2 desc, 1 limit 3;'
        sqlite3 a.db 'pragma journal_mode = wal; begin; delete from t where a % 2; rollback; delete from t where a > 100; vacuum; pragma integrity_check; select max(a) from t;'
        for i in 1 2 3; do sqlite3 a.db ".timeout 9000" "insert into t(b) values('p$i')" & done; wait; sqlite3 a.db "select count(*) from t where b like 'p%'"
        sqlite3 a.db .dump | sqlite3 b.db; sqlite3 b.db 'select count(*) from t'; sqlite3 a.db 'select bad from t'; echo $?
        "#,
    ),
    (
        "perl",
        "1",
        r##"
        perl -e 'use POSIX; my $pid = fork; if (!$pid) { print "child\n"; POSIX::_exit(3) } waitpid $pid, 0; print $? >> 8, "\n";
          pipe my $r, my $w; if (!fork) { close $r; print $w "word $_\n" for 1 .. 3; exit } close $w; print while <$r>; wait;
          local $SIG{ALRM} = sub { die "alarm\n" }; $SIG{USR1} = sub { print "usr1\n" }; kill USR1 => $$; print `echo sub`;
          open my $f, "+>", "file" or die; print $f "x" x 10000; seek $f, 5000, 0; read $f, my $b, 3; print "$b\n"; truncate $f, 7; print -s "file", "\n";
          opendir my $d, "." or die; print join(",", sort grep { !/^\./ } readdir $d), "\n"; print join(" ", map { $_ ** 2 } 1 .. 5), "\n";
          my %h; $h{$_ % 7}++ for 1 .. 1000; print join(" ", map { "$_=$h{$_}" } sort keys %h), "\n"; symlink "file", "l"; print readlink "l", "\n";
          exec "sh", "-c", "echo executed" if 0; system "exit 4"; print $? >> 8, "\n"; rename "file", "moved"; print -e "moved" ? "yes\n" : "no\n"; exit 2'
        "##,
    ),
    (
        "python3",
        "2",
        r#"
        cat > program.py <<'END'
import bz2, gzip, hashlib, json, lzma, mmap, multiprocessing, os, queue, select, shutil, signal, sqlite3, subprocess, sys
import tempfile, threading, time, zlib
print(sys.version_info[:2], os.getpid() > 0, os.path.exists("/proc/self/exe"))
answers = queue.Queue()
threads = [threading.Thread(target=lambda i=i: answers.put(i * i)) for i in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
print(sorted(answers.get() for _ in threads))
lock, total = threading.Condition(), [0]
def add():
    for _ in range(200):
        with lock:
            total[0] += 1
            lock.notify_all()
adders = [threading.Thread(target=add) for _ in range(3)]
[t.start() for t in adders]
with lock:
    print(lock.wait_for(lambda: total[0] == 600, timeout=60), total[0])
[t.join() for t in adders]
with multiprocessing.Pool(2) as pool:
    print(pool.map(abs, range(-5, 5)))
print(subprocess.run(["sh", "-c", "cat; exit 5"], input=b"piped", capture_output=True))
folder = tempfile.mkdtemp()
with open(os.path.join(folder, "x"), "w+b") as file:
    file.write(b"abc" * 5000)
    file.flush()
    with mmap.mmap(file.fileno(), 0) as memory:
        memory[0:3] = b"xyz"
        print(memory.find(b"abc"), len(memory))
    file.seek(0)
    print(hashlib.sha256(file.read()).hexdigest())
print(os.listdir(folder)); shutil.rmtree(folder)
data = json.dumps({"list": list(range(50))}).encode()
print([m.decompress(m.compress(data)) == data for m in (zlib, bz2, lzma, gzip)])
signal.signal(signal.SIGUSR1, lambda number, frame: print("signal", number))
os.kill(os.getpid(), signal.SIGUSR1)
r, w = os.pipe()
poll = select.epoll(); poll.register(r, select.EPOLLIN)
print(poll.poll(0.01)); os.write(w, b"1"); print([e[1] for e in poll.poll(1)])
base = sqlite3.connect("p.db"); base.execute("create table t(a)")
base.executemany("insert into t values(?)", [(i,) for i in range(100)]); base.commit()
print(base.execute("select sum(a) from t").fetchone())
start = time.monotonic(); time.sleep(0.05); print(time.monotonic() - start >= 0.05)
try:
    open("/none")
except FileNotFoundError as error:
    print(error)
pid = os.fork()
if pid == 0:
    os.abort()
print(os.WTERMSIG(os.waitpid(pid, 0)[1]))
sys.exit(7)
END
        exec python3.11 program.py
        "#,
    ),
    (
        "git",
        "1",
        r#"
        export GIT_AUTHOR_DATE='2024-01-01T00:00:00Z' GIT_COMMITTER_DATE='2024-01-01T00:00:00Z' GIT_CONFIG_NOSYSTEM=1
        git init -q -b trunk r; cd r; git config user.email a@b; git config user.name n; git config gc.auto 0; seq 100 > f; git add f; git commit -qm one
        sed -i 's/^50$/fifty/' f; git diff; git commit -qam two; git checkout -qb other HEAD~; echo x > g; git add g; git commit -qm three
        git checkout -q trunk; git merge -q --no-edit other; git log --oneline | cat; git gc -q; git fsck; git status --short; cd ..; git clone -q r s; ls s
        cd s; git log --format=%H -1; git grep -n fifty; git archive HEAD | tar t; git tag v1; git describe; git blame -s f | sed -n 50p
        "#,
    ),
    (
        "gcc",
        "1",
        r#"
        cat > a.c <<'END'
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static void *run(void *n) { return (void *)((long)n * 2); }
int main(void)
{
    pthread_t t; void *r;
    pthread_create(&t, NULL, run, (void *)21L); pthread_join(t, &r);
    printf("compiled %ld\n", (long)r); errno = EINTR; printf("%s\n", strerror(errno)); fflush(stdout);
    return execl("/bin/sh", "sh", "-c", "echo executed; exit 6", NULL);
}
END
        gcc-12 -O2 -Wall -o a a.c && ./a; echo $?; echo 'int main(void) { return x; }' > b.c; gcc-12 b.c 2>&1 | head -2; gcc-12 -E -dM - < /dev/null | grep -c __; ls
        "#,
    ),
];

/// A script with a core file, and its output. Where a Linux host writes one depends on its settings.
const CORE_FILE: (&str, &str) = (
    r#"
    cat /proc/sys/kernel/core_pattern; dash -c 'kill -SEGV $$'; echo $?; ls
    (ulimit -c unlimited; exec dash -c 'kill -SEGV $$'); echo $?; stat -c %a core
    gdb -batch -nx -ex 'print $_siginfo.si_signo' -ex 'bt 1' /usr/bin/dash core > log 2>&1; grep '^\$' log
    grep -q '^#0 .* in kill ()' log && echo found; grep -o 'generated by.*' log
    "#,
    "core\n139\n139\n600\n$1 = 11\nfound\ngenerated by `dash -c kill -SEGV $$'.\n",
);

/// Makes a root file system with this host's programs.
fn root() -> LinuxRoot {
    let root = LinuxRoot::new();
    for applet in ["sh", "ls", "cat", "tr", "seq", "wc", "sleep", "grep", "sort", "dd", "awk", "find"] {
        std::fs::remove_file(root.path("bin").join(applet)).unwrap();
    }
    for program in PROGRAMS {
        let paths = [format!("/usr/bin/{program}"), format!("/bin/{program}")];
        if let Some(path) = paths.iter().find(|path| Path::new(path).exists()) {
            root.copy_program(path);
        }
    }
    OF_GCC.iter().for_each(|path| root.copy_program(path));
    FOLDERS.iter().for_each(|path| root.copy_folder(path));
    FILES.iter().for_each(|path| root.copy(path));
    for entry in std::fs::read_dir("/usr/lib/python3.11/lib-dynload").unwrap() {
        root.copy_program(&entry.unwrap().path().display().to_string());
    }
    std::os::unix::fs::symlink("/usr/bin/dash", root.path("bin/sh")).unwrap();
    std::os::unix::fs::symlink("git", root.path("usr/bin/git-upload-pack")).unwrap();
    root
}

/// Runs a script on this host, in a folder of its own.
fn on_host(script: &str) -> (String, Option<i32>) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("bash");
    command.args(["-c", &complete(&folder.path().display().to_string(), script)]).env_clear();
    let output = command.stdin(std::process::Stdio::null()).output().unwrap();
    (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.code())
}

/// Returns a script with its environment: both outputs in one, and a folder.
fn complete(folder: &str, script: &str) -> String {
    format!("export PATH=/usr/bin:/bin LC_ALL=C HOME={folder} TZ=UTC; cd {folder}; exec 2>&1\n{script}")
}

#[test]
fn scripts_print_in_a_cell_what_they_print_on_linux() {
    if [Need::E2fsprogs, Need::Busybox, Need::DebianPrograms].into_iter().any(|needed| !need(needed)) {
        return;
    }
    let root = root();
    let isola = Isola::up(&["--cores", "3", "--memory", "2G"]);
    let volume = root.volume(&isola, "600M");
    let only = std::env::var("ISOLA_SCRIPT").ok();
    let mut differences = Vec::new();
    for (name, cores, script) in SCRIPTS {
        if only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        let expected = on_host(script);
        let options = ["--cores", cores, "--memory", "512M", "--network", "none"];
        let start = std::time::Instant::now();
        let outcome = volume.run_with(&isola, &options, &["--", "bash", "-c", &complete("/tmp", script)]);
        println!("{name}: {:.1} s", start.elapsed().as_secs_f64());
        let shown: String =
            outcome.out.lines().filter(|line| !is_note(line)).map(|line| format!("{line}\n")).collect();
        if (shown.as_str(), outcome.code) != (expected.0.as_str(), expected.1) {
            differences.push(format!(
                "{name}: in the cell, with {:?}:\n{shown}\non this host, with {:?}:\n{}",
                outcome.code, expected.1, expected.0
            ));
        }
    }
    let (script, expected) = CORE_FILE;
    let options = ["--memory", "512M", "--network", "none"];
    let outcome = volume.run_with(&isola, &options, &["--", "bash", "-c", &complete("/tmp", script)]);
    // The shell's own messages about the signal.
    let is_shell = |line: &str| line.starts_with("bash: ");
    let shown = outcome.out.lines().filter(|line| !is_note(line) && !is_shell(line));
    let shown: String = shown.map(|line| format!("{line}\n")).collect();
    assert_eq!(shown, expected);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Returns whether a line is the cell's own: a process that a signal has ended, or an event that took long.
fn is_note(line: &str) -> bool {
    line.starts_with("linux: process") || line.starts_with("watchdog: ")
}
