use super::*;
use crate::fake_machine::{FakeMachine, wait_until};

fn no_cancel() -> CancellationToken {
    CancellationToken::new()
}

#[tokio::test]
async fn a_program_gets_nothing_on_stdin_and_none_of_our_variables() {
    let machine = FakeMachine::new();
    let path = machine.program(
        "tool",
        "cat; echo \"[$CARGO_MANIFEST_DIR]\"; echo oops >&2; exit 3",
    );
    let answer = ask(&path, &[], Duration::from_secs(20), &no_cancel())
        .await
        .unwrap();
    assert_eq!(answer.stdout, "[]\n");
    assert_eq!(answer.stderr, "oops\n");
    assert_eq!(
        answer.success().unwrap_err().to_string(),
        "tool ended with exit status 3: oops"
    );
}

#[tokio::test]
async fn a_hanging_program_is_killed_and_reaped_with_its_children() {
    let machine = FakeMachine::new();
    let pids = machine.path("pids");
    let path = machine.program(
        "tool",
        &format!(
            "sleep 600 & echo $! >{0}; echo $$ >>{0}; wait",
            pids.display()
        ),
    );
    let error = ask(&path, &[], Duration::from_millis(700), &no_cancel())
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "tool did not answer within 0.7 s");
    let pids = std::fs::read_to_string(pids).unwrap();
    assert_eq!(pids.lines().count(), 2);
    for pid in pids.lines() {
        wait_until("the process is gone", || {
            !crate::fake_machine::is_running(pid)
        })
        .await;
    }
}

/// After the leader is reaped its number may belong to anybody, so nothing is killed by it any more.
#[tokio::test]
async fn nothing_is_killed_by_the_number_of_a_program_that_ended() {
    let machine = FakeMachine::new();
    let (go, went) = (machine.path("go"), machine.path("went"));
    let path = machine.program(
        "tool",
        &format!(
            "(until [ -e {} ]; do sleep 0.01; done; touch {}) >/dev/null 2>&1 &",
            go.display(),
            went.display()
        ),
    );
    ask(&path, &[], Duration::from_secs(20), &no_cancel())
        .await
        .unwrap();
    std::fs::write(go, "").unwrap();
    wait_until("what it left behind goes on", || went.exists()).await;
}

#[tokio::test]
async fn a_cancelled_program_is_killed_at_once() {
    let machine = FakeMachine::new();
    let path = machine.program("tool", "echo started; sleep 600");
    let cancel = no_cancel();
    let stop = cancel.clone();
    let mut on_line = |_: &[u8]| {
        stop.cancel();
        ControlFlow::Continue(())
    };
    let seen = lines(&path, &[], Duration::from_mins(10), &cancel, &mut on_line);
    let seen = tokio::time::timeout(Duration::from_secs(30), seen)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(seen.end, End::Cancelled);
}

#[tokio::test]
async fn a_dropped_wait_leaves_no_process_behind() {
    let machine = FakeMachine::new();
    let pid = machine.path("pid");
    let path = machine.program(
        "tool",
        &format!("echo $$ >{}.new; mv {0}.new {0}; sleep 600", pid.display()),
    );
    let cancel = no_cancel();
    {
        let asked = ask(&path, &[], Duration::from_mins(10), &cancel);
        tokio::select! {
            _ = asked => panic!("it cannot end by itself"),
            () = wait_until("it started", || pid.exists()) => {}
        }
    }
    let pid = std::fs::read_to_string(pid).unwrap();
    wait_until("the process is gone", || {
        !crate::fake_machine::is_running(pid.trim())
    })
    .await;
}

#[tokio::test]
async fn a_program_that_cannot_be_killed_is_not_started_again_until_it_is_gone() {
    let machine = FakeMachine::new();
    let path = machine.program("tool", "echo hello");
    // A process that ignores SIGKILL cannot be made in a test; one that was never sent it looks the same.
    let hanging = Command::new("/bin/sleep")
        .arg("600")
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let pid = hanging.id().unwrap();
    set_aside(&path, hanging);
    let error = ask(&path, &[], Duration::from_secs(20), &no_cancel())
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("tool of an earlier run still hangs as process {pid}")
    );
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    wait_until("it is gone", || still_hanging(&path).is_none()).await;
    ask(&path, &[], Duration::from_secs(20), &no_cancel())
        .await
        .unwrap();
}

#[tokio::test]
async fn a_program_that_never_stops_writing_is_stopped() {
    let machine = FakeMachine::new();
    let path = machine.program("tool", "exec yes");
    let error = ask(&path, &[], Duration::from_mins(1), &no_cancel())
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "tool wrote more than 1048576 bytes");
}

#[tokio::test]
async fn overlong_lines_are_left_out_and_the_rest_is_read() {
    let machine = FakeMachine::new();
    let path = machine.program(
        "tool",
        "echo one; head -c 3000000 /dev/zero | tr '\\0' x; echo; printf two",
    );
    let mut seen = Vec::new();
    let lines = lines(
        &path,
        &[],
        Duration::from_mins(1),
        &no_cancel(),
        &mut |line| {
            seen.push(String::from_utf8_lossy(line).into_owned());
            ControlFlow::Continue(())
        },
    )
    .await
    .unwrap();
    assert_eq!(seen, ["one", "two"]);
    assert_eq!(lines.overlong, 1);
}

#[tokio::test]
async fn a_program_that_does_not_run_is_named() {
    let machine = FakeMachine::new();
    let path = machine.path("nowhere/tool");
    let error = ask(&path, &[], Duration::from_secs(1), &no_cancel())
        .await
        .unwrap_err();
    assert!(
        error.chain().starts_with("tool could not be started: "),
        "{}",
        error.chain()
    );
}
