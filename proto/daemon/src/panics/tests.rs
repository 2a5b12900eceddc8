#![allow(clippy::panic, reason = "these tests are about panics")]

use std::process::Command;
use std::time::Duration;

use super::*;

/// What a copy of this test binary does when it is started with this variable.
const ROLE: &str = "PANICS_TEST_ROLE";

#[test]
fn a_panic_inside_a_boundary_is_an_error() {
    assert_eq!(isolate_sync(|| 7), Ok(7));
    let failed = isolate_sync(|| -> u8 { panic!("no {}", "luck") });
    assert_eq!(failed, Err(Panicked { message: "no luck".into() }));
    assert_eq!(DEPTH.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_future_may_panic_in_any_poll() {
    let late = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        panic!("late");
    };
    let failed: Result<(), Panicked> = isolate(late).await;
    assert_eq!(failed, Err(Panicked { message: "late".into() }));
    let good = isolate(async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(DEPTH.get(), 1);
        3
    });
    assert_eq!(good.await, Ok(3));
    assert_eq!(DEPTH.get(), 0, "a boundary is left between polls");
}

#[test]
fn messages_are_cut_between_characters() {
    let failed = isolate_sync(|| -> u8 { panic!("{}", "é".repeat(MESSAGE_MAX)) });
    let message = failed.map_err(|panicked| panicked.message).unwrap_err();
    assert_eq!(message.chars().count(), MESSAGE_MAX / 2);
}

/// Work whose destructor panics.
struct Unsound(fn() -> Poll<u8>);

impl Future for Unsound {
    type Output = u8;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<u8> {
        self.0()
    }
}

impl Drop for Unsound {
    fn drop(&mut self) {
        panic!("destructor");
    }
}

/// Not a test of its own: what the copy does that the next test starts.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    install();
    assert!(isolate_sync(|| panic!("inside")).is_err());
    match role.as_str() {
        "here" => panic!("outside"),
        "thread" => drop(std::thread::spawn(|| panic!("outside")).join()),
        // What hyper spawns for a connection is inside one.
        "executor" => {
            let runtime = tokio::runtime::Runtime::new().expect("a runtime");
            runtime.block_on(async {
                let (done, ended) = tokio::sync::oneshot::channel::<()>();
                hyper::rt::Executor::execute(&IsolatedExecutor, async move {
                    let _done = done;
                    panic!("stream");
                });
                assert!(ended.await.is_err());
            });
        }
        "spawned" => {
            let runtime = tokio::runtime::Runtime::new().expect("a runtime");
            runtime.block_on(async {
                let task = spawn(async { panic!("task") }).await;
                assert!(task.is_err_and(|error| error.is_panic()));
                let blocking = spawn_blocking(|| panic!("blocking")).await;
                assert!(blocking.is_err_and(|error| error.is_panic()));
                assert_eq!(spawn_blocking(|| 7).await.expect("done"), 7);
            });
        }
        // Work is dropped inside its boundary: once it has ended or panicked, and when nothing waits for it any more.
        "dropped" => {
            let runtime = tokio::runtime::Runtime::new().expect("a runtime");
            runtime.block_on(async {
                assert_eq!(isolate(Unsound(|| Poll::Ready(7))).await, Ok(7));
                let panicked = Panicked { message: "poll".to_owned() };
                assert_eq!(isolate(Unsound(|| panic!("poll"))).await, Err(panicked));
                let mut waiting = isolate(Unsound(|| Poll::Pending));
                let mut context = Context::from_waker(std::task::Waker::noop());
                assert_eq!(Pin::new(&mut waiting).poll(&mut context), Poll::Pending);
                drop(waiting);
                drop(isolate(Unsound(|| Poll::Pending)));
            });
        }
        // A thread started inside a boundary is outside of it.
        "nested" => {
            drop(isolate_sync(|| drop(std::thread::spawn(|| panic!("outside")).join())));
        }
        _ => {}
    }
    println!("survived");
}

#[test]
fn a_panic_outside_of_boundaries_aborts_the_program() {
    let run = |role: &str| {
        let program = std::env::current_exe().expect("this test binary");
        let arguments = ["--exact", "panics::tests::role", "--nocapture"];
        let output = Command::new(program).args(arguments).env(ROLE, role).output().expect("runs");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert!(run("inside").0);
    assert!(run("executor").0);
    assert!(run("spawned").0);
    let (succeeded, errors) = run("dropped");
    assert!(succeeded, "{errors}");
    for role in ["here", "thread", "nested"] {
        let (succeeded, errors) = run(role);
        assert!(!succeeded, "{role}: went on");
        assert!(errors.contains(": outside"), "{role}: {errors}");
    }
}
