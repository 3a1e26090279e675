//! SIGKILL in the middle of writes.

use super::writers::{verify_all, write_during};
use crate::skip_if;
use crate::support::{Place, c_program, no_fuse, program, run};
use std::fs;
use std::process::Command;
use std::time::Duration;

#[test]
fn nothing_acknowledged_is_lost_when_the_daemon_is_killed() {
    skip_if!(no_fuse());
    let place = Place::with_image("256MiB");
    let mut rounds = Vec::new();
    for round in 0..4 {
        let mut mount = place.mount(&format!("mount {round}"));
        verify_all(&mount.path, &rounds);
        let path = mount.path.clone();
        rounds.push(write_during(&path, round, || {
            std::thread::sleep(Duration::from_millis(300 + 150 * round));
            mount.kill();
        }));
        // Removes the dead mount.
        drop(mount);
        place.check_clean();
    }
    let mount = place.mount("last");
    verify_all(&mount.path, &rounds);
    mount.unmount().ok();
    place.check_clean();
}

#[test]
fn what_was_not_synced_is_a_prefix_and_never_garbage() {
    skip_if!(no_fuse());
    let place = Place::with_image("128MiB");
    let mut mount = place.mount("mount");
    for index in 0..2000 {
        fs::write(mount.path.join(format!("{index:04}")), format!("contents of {index}")).unwrap();
    }
    mount.kill();
    drop(mount);
    let mount = place.mount("again");
    let mut names: Vec<String> = fs::read_dir(&mount.path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_unstable();
    for (index, name) in names.iter().enumerate() {
        assert_eq!(*name, format!("{index:04}"), "names come back in the order in which they were made");
        let found = fs::read(mount.path.join(name)).unwrap();
        assert!(found.is_empty() || found == format!("contents of {index}").as_bytes(), "{name}");
    }
    mount.unmount().ok();
    place.check_clean();
}

/// Pages stored to through a mapping are still in the kernel at the sync.
#[test]
fn everything_is_durable_after_a_sync_of_all() {
    skip_if!(no_fuse());
    let place = Place::with_image("64MiB");
    let mut mount = place.mount("mount");
    let below = mount.path.join("a/b");
    fs::create_dir_all(&below).unwrap();
    fs::write(below.join("written"), vec![7; 300_000]).unwrap();
    fs::write(below.join("mapped"), vec![0; 4096]).unwrap();
    let store_and_run = c_program(
        &place,
        r#"
        #include <fcntl.h>
        #include <sys/mman.h>
        #include <sys/wait.h>
        #include <unistd.h>
        int main(int argc, char **argv) {
            int fd = open(argv[1], O_RDWR), status = argc;
            char *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            page[7] = 'x';
            if (fork() == 0)
                return execv(argv[2], argv + 2);
            wait(&status);
            return WEXITSTATUS(status);
        }"#,
    );
    let mut command = Command::new(store_and_run);
    command.arg(below.join("mapped")).arg(program().get_program()).args(["sync", "--all"]).arg(&below);
    run(command).ok();
    mount.kill();
    drop(mount);
    let mount = place.mount("again");
    let below = mount.path.join("a/b");
    assert!(fs::read(below.join("written")).unwrap() == vec![7; 300_000]);
    assert_eq!(fs::read(below.join("mapped")).unwrap()[7], b'x');
    mount.unmount().ok();
    place.check_clean();
}
