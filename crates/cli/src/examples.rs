//! Examples below each command's help, and in its manual page. A test parses every one of them.

pub const MKFS: &str = "\
Examples:
  syncline mkfs disk.img --size 20GiB            an image file, fully written
  syncline mkfs /dev/vg0/data --label data       a whole block device
  syncline mkfs disk.img --force                 again, over the present contents";

pub const MOUNT: &str = "\
Examples:
  syncline mount disk.img /mnt/data
  syncline mount disk.img /mnt/data --create 8GiB          make the image first, if there is none
  syncline mount disk.img@monday /mnt/then                 a snapshot, read-only
  syncline mount disk.img@monday /mnt/try --fork           a writable fork of it, until it is unmounted
  syncline mount disk.img /mnt/data -o ro                  only look
  syncline mount disk.img /mnt/data -o commit=5,memory=4GiB
  syncline mount disk.img /mnt/data --foreground --log /var/log/syncline.log";

pub const KEY_LIST: &str = "\
Examples:
  syncline key list disk.img
  syncline key list disk.img --json";

pub const KEY_ADD: &str = "\
Examples:
  syncline key add disk.img                                     asks for a present passphrase, and for the new one
  syncline key add disk.img --name backup --new-key-file /root/backup.key
Any key of an image opens it, and nobody can open it without one: keep a second key in another place.";

pub const KEY_CHANGE: &str = "\
Examples:
  syncline key change disk.img                                  asks for the passphrase that goes, and for the new one
  syncline key change disk.img --key-file old.key --new-key-file new.key";

pub const KEY_REMOVE: &str = "\
Examples:
  syncline key remove disk.img 2                                'key list' shows the numbers";

pub const UMOUNT: &str = "\
Examples:
  syncline umount /mnt/data
If it is busy, 'fuser -vm /mnt/data' shows who uses it. Where another mount namespace (a container, a service, 'unshare') has the \
mount too, the filesystem stays alive there: umount says so, and names the process.

The exit code is 8 if the last checkpoint did not end well or had to leave out data that could not be written, or if the mount had lost its image (to another host, or because its \
storage was away for too long): then unsynced changes are lost, and the command does not look at the image.";

pub const TAKEOVER: &str = "\
Examples:
  syncline takeover 'rbd:pool/db'                at once: the cluster refuses the former host's writes
  syncline takeover 'nbd://storage/db'           when the former host's device lease has ended, in about 15 s
The former host's mount answers every request with EIO from then on, also if that host was only stopped or cut off. \
'syncline mount --takeover' also mounts.";

pub const RUN: &str = "\
Examples:
  syncline run disk.img -- tar xf /tmp/linux.tar
  syncline run scratch.img --create 4GiB -- git clone /srv/project.git
  syncline run disk.img@monday -- ./try-an-upgrade          in a fork that is thrown away; its own blocks lie in $TMPDIR
COMMAND runs in the filesystem's root directory; give absolute paths for files elsewhere. The exit code is COMMAND's; 126 and 127 if it can't be run. 3 if the image stays mounted, and 8 if unsynced changes may be lost, \
whatever COMMAND's was.";

pub const STATUS: &str = "\
Examples:
  syncline status
  syncline status --json                         an array with an object for each mount";

pub const LS: &str = "\
Examples:
  syncline ls disk.img
  syncline ls -l disk.img:/home/alice
  syncline ls disk.img@monday:/home              a snapshot, also while the image is mounted
  syncline ls /mnt/data@monday:/home             that snapshot, by the directory of the mount
Whole trees: 'syncline cp -a'.";

pub const CAT: &str = "\
Examples:
  syncline cat disk.img:/etc/fstab
  syncline cat disk.img@monday:/notes.txt        as it was on monday";

pub const CP: &str = "\
Examples:
  syncline cp disk.img:/etc/fstab .
  syncline cp -a disk.img:/home/alice /srv/alice
  syncline cp -a disk.img@monday:/home disk.img@monday:/etc saved    both into the directory 'saved'
  syncline cp -a disk.img: saved                 everything in it
Nothing needs to be mounted, and nothing is written to the image. Entries that can't be read or made are reported, and the rest is copied. \
If the log or a superblock is damaged, files may have older contents or be missing: then a message says so, and the exit code is 4. \
Without -r and -a a link is followed, inside of the image. Into an image: mount it, and use cp.";

pub const CHECK: &str = "\
Examples:
  syncline check disk.img
  syncline check disk.img --repair --dry-run     list the repairs
  syncline check disk.img --repair
  syncline check disk.img --json                 findings for a program

Exit codes, as of fsck(8): 0 no errors; 1 errors were repaired; 4 errors are left; 8 the check could not be done; 16 wrong \
usage.";

pub const SCRUB: &str = "\
Examples:
  syncline scrub /mnt/data                       at 50 MiB a second
  syncline scrub /mnt/data --rate 0              as fast as it goes";

pub const SYNC: &str = "\
Examples:
  syncline sync accounts.db accounts.idx         both or neither, with one flush
  syncline sync /mnt/data                        the directory itself: only the names in it
  syncline sync --all /mnt/data                  everything, as sync(2) does for filesystems of the kernel";

pub const BARRIER: &str = "\
Examples:
  syncline barrier segment.new                   before the file that will refer to it is written";

pub const DU: &str = "\
Examples:
  syncline du /mnt/data                          all files below it, in one line
  syncline du --all vm.img clone.img             exclusive and shared space of both";

pub const CLONE: &str = "\
Examples:
  syncline clone /mnt/data/project /mnt/data/project.before
  syncline clone vm.img vm.test.img
The copy is like that of 'cp -a', with owners, permissions, times, extended attributes, access control lists, hard links, \
holes and flags, but takes no space for data, and survives a crash when the command returns. If programs change the tree meanwhile, each file is \
copied as it is at its turn, and what has been removed is left out and counted. A durability class other than strict, and quotas, \
are not copied. A snapshot is another mount: copy from it with 'cp -a'.";

pub const DEFRAGMENT: &str = "\
Examples:
  syncline defragment vm.img accounts.db
  syncline defragment -r /mnt/data
  syncline defragment --unshare clone.img        shared blocks, too: takes new space for them
Files stay in use meanwhile; contents and times do not change. Fragments of 4 MiB and more are left where they are.";

pub const SEND: &str = "\
Examples:
  syncline send disk.img monday -o monday.stream
  syncline send /mnt/data monday  | ssh backup syncline receive /srv/backup.img
  syncline send /mnt/data tuesday --from monday  | ssh backup syncline receive /srv/backup.img
A stream that was cut off, and received with --resume, goes on:
  token=$(ssh backup syncline receive /srv/backup.img --token)
  syncline send /mnt/data monday --resume $token  | ssh backup syncline receive --resume /srv/backup.img
The sender reads the received part again, compares it, and sends only the rest. Repeat --from if the stream had it.";

pub const RECEIVE: &str = "\
Examples:
  syncline receive backup.img -i monday.stream
  ssh host syncline send /mnt/data monday | syncline receive backup.img --name host-monday
  ssh host syncline send /mnt/data monday | syncline receive --resume backup.img
The snapshot appears when the whole stream has arrived unchanged; until then files and snapshots stay as they were. \
Present files and snapshots stay.
With --resume, the received part of a stream that is cut off is saved in the image, hidden:
  syncline receive backup.img --token            for 'syncline send --resume', which sends the rest
  syncline receive --resume backup.img -i FILE   the rest, or the whole stream once more
  syncline receive backup.img --abandon          discards the part";

pub const FORK: &str = "\
Examples:
  syncline fork base.img@monday work.img           base.img may be mounted, and goes on
  syncline fork /mnt/data@monday work.img
  syncline fork --remove work.img                  base.img need not keep the snapshot for it any more
  syncline fork --detach work.img                  copies all that work.img shares with base.img
  syncline fork --base /srv/base.img work.img      base.img has moved there, or work.img was moved or copied
  syncline fork --forget base.img work.img         somebody removed work.img by 'rm'
A fork reads the blocks of the snapshot from its base, and writes to its own file, which takes some 30 KiB at first. Keep the base: \
without it the fork can't be mounted. The base keeps the snapshot as long as it has forks, and knows each by the path where it was made; \
'syncline snapshot list' names them. For a fork that is thrown away at the end, see 'mount --fork' and 'run'. Making a fork writes to the \
base; 'mount --fork' and 'run' only read it.";

pub const SNAPSHOT_CREATE: &str = "\
Examples:
  syncline snapshot create /mnt/data before-upgrade
  syncline snapshot create disk.img as-installed             an image that is not mounted";

pub const SNAPSHOT_LIST: &str = "\
Examples:
  syncline snapshot list /mnt/data
  syncline snapshot list disk.img --json
'syncline ls DIR@NAME:/' lists its files, 'syncline snapshot mount DIR NAME DIRECTORY' mounts it.";

pub const SNAPSHOT_DELETE: &str = "\
Examples:
  syncline snapshot delete /mnt/data before-upgrade";

pub const SNAPSHOT_PRUNE: &str = "\
Examples:
  syncline snapshot prune /mnt/data --prefix auto- --keep hourly=24,daily=7,weekly=4 --dry-run
  syncline snapshot prune backup.img --prefix auto- --keep daily=14,monthly=12,yearly=5
A snapshot that is mounted or being read stays, and the exit code is 3 then.";

pub const SNAPSHOT_MOUNT: &str = "\
Examples:
  syncline snapshot mount /mnt/data before-upgrade /mnt/old    and copy from there; then 'syncline umount /mnt/old'
  syncline snapshot mount disk.img as-installed /mnt/old";

pub const SNAPSHOT_ROLLBACK: &str = "\
Examples:
  syncline snapshot rollback disk.img before-upgrade
  syncline snapshot rollback disk.img before-upgrade --keep failed-upgrade";

pub const SNAPSHOT_DIFF: &str = "\
Examples:
  syncline snapshot diff /mnt/data monday tuesday
  syncline snapshot diff disk.img monday                     with the present state";

pub const COMPRESS: &str = "\
Examples:
  syncline compress /mnt/data/src                new files there, with Zstandard
  syncline compress -r --now --algorithm lz4 /mnt/data/logs
  syncline compress -r --show /mnt/data";

pub const DURABILITY_SET: &str = "\
Classes:
  fsync    a synced file is durable when the call of the program returns
  ordered  a sync returns as soon as its place in history is fixed, without waiting for the device; at most --within
           seconds later a flush begins. A power cut loses the last seconds, never the order
  strict   each write and each change of names is durable before it returns

Examples:
  syncline durability set /mnt/data/build ordered
  syncline durability set /mnt/data/build ordered --within 30 --recursive
  syncline durability set /mnt/data/ledger strict
Present files of a directory keep their class, unless --recursive. 'syncline sync --all DIR' makes everything durable.";

pub const DURABILITY_SHOW: &str = "\
Examples:
  syncline durability show /mnt/data/build";

pub const DURABILITY_LIST: &str = "\
Examples:
  syncline durability list /mnt/data";

pub const QUOTA_SET: &str = "\
Examples:
  syncline quota set /mnt/data/alice --bytes 10GiB --inodes 100000
  syncline quota set /mnt/data/alice --bytes 20GiB           the other limit stays
A directory that has contents is counted first, which takes a while; until then the limits do not apply. If that is
interrupted, run the command again. Root is limited, too. No directory above or below can have another quota.";

pub const QUOTA_SHOW: &str = "\
Examples:
  syncline quota show /mnt/data/alice
  df -h /mnt/data/alice                                      the limits, as free space";

pub const QUOTA_LIST: &str = "\
Examples:
  syncline quota list /mnt/data
  syncline quota list disk.img --json";

pub const QUOTA_REMOVE: &str = "\
Examples:
  syncline quota remove /mnt/data/alice";

pub const INFO: &str = "\
Examples:
  syncline info disk.img
  syncline info disk.img --json";

pub const LABEL: &str = "\
Examples:
  syncline label disk.img                        show it
  syncline label disk.img backups                set it: at most 64 bytes; '' for none
  syncline label /mnt/data backups               also while it is mounted, for root and the mount's owner
  syncline label /dev/san/db --shared on         several hosts reach this device: each needs the device lease to write";

pub const UUID: &str = "\
Examples:
  syncline uuid disk.img                         show it; also of a mount
  syncline uuid copy.img random                  set a new one, as copies of an image should have
  syncline uuid disk.img 6ba7b810-9dad-11d1-80b4-00c04fd430c8
Syncline itself does not mind two images with one UUID. UUID= and LABEL= in fstab find no Syncline filesystem, since blkid(8) does \
not know it: name the image, or a link of the disk in /dev/disk/by-id.";

pub const RESIZE: &str = "\
Examples:
  syncline resize disk.img 20GiB                 the file becomes longer, too
  syncline resize /dev/vg0/data max              all of a block device that was enlarged
  syncline resize /mnt/data 20GiB                while it is mounted and in use
  syncline resize disk.img 5GiB                  smaller, unmounted: blocks behind the end move, the file becomes shorter
  syncline resize disk.img min                   as small as possible
A crash leaves the old size or the new one; run the command again to continue.";

pub const TRIM: &str = "\
Examples:
  syncline trim /mnt/data                        while it is mounted, as 'fstrim /mnt/data' does
  syncline trim /dev/sdb1 --minimum 1MiB         of a disk that is not mounted
  syncline trim disk.img --punch                 of an image file that is not mounted
Mounts with -o discard discard freed blocks in the background.
An image file keeps its allocated blocks, so it never meets a full host. With --punch, or mounted \
with -o discard=punch, its free blocks become holes. If its host is full when they are written again, these writes fail, and \
a filesystem whose log can't be written turns read-only.";

pub const PATH: &str = "\
Examples:
  syncline path /mnt/data 4711                   of a mount
  syncline path disk.img 4711                    of an image that is not mounted";

pub const EXPLAIN: &str = "\
Examples:
  syncline explain accounts.db                   its last ten fsyncs, and where their time went
  syncline explain accounts.db --last 1 --json
  syncline explain /mnt/data                     of all files, for root and the mount's owner";

pub const CRASHLAB: &str = "\
Examples:
  syncline crashlab record -- ./my-program
  syncline crashlab explore --check ./my-checker
  syncline crashlab explore --on syncline --check ./my-checker      on Syncline itself, as root";

pub const DEMO: &str = "\
Examples:
  syncline demo
  syncline demo --seconds 2 --embedded           where nothing can be mounted
  syncline demo --json                           the figures, for a program";

pub const COMPLETIONS: &str = "\
Examples:
  syncline completions bash
  syncline completions zsh
  syncline completions fish
Places: /usr/share/bash-completion/completions/syncline, /usr/share/zsh/site-functions/_syncline,
~/.config/fish/completions/syncline.fish. 'syncline setup' puts them below /usr/local.";

pub const SETUP: &str = "\
Examples:
  sudo ~/.cargo/bin/syncline setup               for all users, with 'mount -t syncline' and fstab
  syncline setup --prefix ~/.local --helpers ~/.local/sbin
  sudo syncline setup --remove
Run it again after an update. A package, or 'just install', has all of it already.";

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory, Parser};
    use syncline_stream::{Position, Token};

    /// The commands below this one that can be called.
    fn leaves(command: &Command) -> Vec<Command> {
        let below =
            command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help");
        below
            .flat_map(|below| match below.has_subcommands() {
                true => leaves(below),
                false => vec![below.clone()],
            })
            .collect()
    }

    /// A value for the shell's `$token`.
    fn token() -> String {
        let position = Position { records: 7, checksum: 5 };
        let token = Token { uuid: [1; 16], filesystem_features: 0, created_ns: 3, parent_ns: 0, position };
        token.to_string()
    }

    #[test]
    fn every_command_has_examples_and_they_are_right() {
        let mut definition = crate::Cli::command();
        definition.build();
        let commands = leaves(&definition);
        assert!(commands.len() > 18);
        for command in commands {
            let name = command.get_bin_name().unwrap_or(command.get_name()).to_owned();
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let examples = help.lines().filter_map(|line| line.strip_prefix("  syncline "));
            let examples: Vec<&str> = examples.collect();
            assert!(!examples.is_empty(), "{name} has no examples");
            for example in examples {
                // Words of the command line are separated by one space; two spaces begin its
                // explanation.
                let line = example.split("  ").next().unwrap_or_default().replace("$token", &token());
                let words = std::iter::once("syncline").chain(line.split_whitespace());
                let parsed = crate::Cli::try_parse_from(words);
                assert!(
                    parsed.is_ok(),
                    "{name}: {line}: {}",
                    parsed.err().map(|e| e.to_string()).unwrap_or_default()
                );
                assert!(
                    format!("syncline {line} ").starts_with(&format!("{name} ")),
                    "{line} is of another command than {name}"
                );
            }
        }
    }
}
