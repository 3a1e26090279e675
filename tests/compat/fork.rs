//! A golden fork and its base. Both have numbers drawn at random, so they are not compared with what this
//! program writes today.

use super::{Feature, compare, golden, make, options, pack, spawn, unpack};
use std::sync::Arc;
use syncline::Filesystem;
use syncline_device::{Device, MemoryDevice, block_on};
use syncline_fork::{Base, Forked};
use syncline_format::FORMAT_VERSION;
use syncline_store::Hold;

/// What the fork has and its base has not.
const IN_FORK: &str = "made in the fork";
const IN_BASE: &str = "made in the base, later";

fn forked(own: Arc<MemoryDevice>, base: Arc<MemoryDevice>) -> Arc<Forked> {
    let own: Arc<dyn Device> = own;
    block_on(async {
        let record = syncline_fork::record_of(&own).await.unwrap().expect("it is a fork");
        syncline_fork::open(own, base, &record).await.unwrap()
    })
}

/// Makes a base, and a fork that goes on after it.
fn make_both() -> (Arc<MemoryDevice>, Arc<MemoryDevice>) {
    let (base, fs) = make(Feature::None);
    let snapshot = block_on(fs.engine().create_snapshot("forked")).unwrap();
    let hold = Hold::new(snapshot.id, 7, "/images/fork.img".as_ref());
    block_on(fs.engine().hold_snapshot(&hold)).unwrap();
    fs.write(IN_BASE, IN_BASE).unwrap();
    fs.close().unwrap();
    let own = MemoryDevice::new(base.size_bytes());
    block_on(async {
        let claimed = Base::claim(base.clone(), &hold.name()).await.unwrap();
        syncline_fork::make(own.clone(), claimed, "/images/base.img".as_ref()).await.unwrap();
    });
    let fs = Filesystem::open_device(forked(own.clone(), base.clone()), options()).unwrap();
    fs.write(IN_FORK, IN_FORK).unwrap();
    fs.close().unwrap();
    (base, own)
}

#[test]
fn a_golden_fork_opens_with_its_base() {
    let paths = ["fork-base", "fork"].map(|state| golden(FORMAT_VERSION, Feature::None, state));
    if std::env::var_os("SYNCLINE_WRITE_GOLDEN").is_some() && !paths[0].exists() {
        let (base, own) = make_both();
        pack(&base, &paths[0]);
        pack(&own, &paths[1]);
    }
    let [base, own] = paths.map(|path| unpack(&path));
    let device = forked(own, base.clone());
    let report = block_on(syncline_check::check(device.clone(), spawn(), &mut |_| {})).unwrap();
    assert!(report.is_clean(), "{:#?}", report.findings);
    let fs = Filesystem::open_device(device, options()).unwrap();
    compare(&fs, Feature::None);
    assert_eq!(fs.read(IN_FORK).unwrap(), IN_FORK.as_bytes());
    assert!(!fs.exists(IN_BASE));
    fs.write("new", "file").unwrap();
    fs.close().unwrap();
    let fs = Filesystem::open_device(base, options()).unwrap();
    compare(&fs, Feature::None);
    assert_eq!(fs.read(IN_BASE).unwrap(), IN_BASE.as_bytes());
    assert!(!fs.exists(IN_FORK));
    assert_eq!(fs.forks()[0].path, "/images/fork.img");
    fs.close().unwrap();
}
