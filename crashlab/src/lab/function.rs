//! A function of a test as the program: its process runs the test again, up to the function.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Write};
use std::process::{Command, exit};

/// Set in that process: which of the test's functions is the program.
const VARIABLE: &str = "CRASHLAB_FUNCTION";
/// libtest prints to the standard output too. The recorded output waits in descriptor 3 until the function begins.
const SCRIPT: &str = "exec 3>&1 >/dev/null; exec \"$@\"";
const OUTPUT: &str = "/proc/self/fd/3";

thread_local! {
    /// Functions that the test has come to.
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

/// True in the process of a program.
pub fn is_program() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// A command that runs this test again, and ends after `function`.
pub fn again(function: impl FnOnce()) -> Command {
    let number = COUNT.replace(COUNT.get() + 1).to_string();
    if std::env::var(VARIABLE).is_ok_and(|wanted| wanted == number) {
        run(function);
    }
    let thread = std::thread::current();
    let test = thread.name().filter(|name| *name != "main");
    let test = test.expect("Lab::function is called in the thread of a test");
    let program = std::env::current_exe().expect("the path of the test program is known");
    let mut command = Command::new("sh");
    command.args(["-c", SCRIPT, "sh"]).arg(program).arg(test);
    command.args(["--exact", "--nocapture", "--include-ignored"]).env(VARIABLE, number);
    command
}

fn run(function: impl FnOnce()) -> ! {
    let output = File::options().write(true).open(OUTPUT).expect("the output that is recorded is open");
    // Lines that libtest printed go to the old output: the program has not promised them.
    let _ = io::stdout().flush();
    rustix::stdio::dup2_stdout(&output).expect("the output that is recorded can be had");
    function();
    let _ = io::stdout().flush();
    exit(0)
}
