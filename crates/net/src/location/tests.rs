use super::*;
use proptest::prelude::*;

fn parse(text: &str) -> Result<Location, LocationError> {
    Location::parse(OsStr::new(text))
}

fn refusal(text: &str) -> String {
    parse(text).expect_err(text).to_string()
}

fn nbd(text: &str) -> NbdLocation {
    match parse(text) {
        Ok(Location::Nbd(nbd)) => nbd,
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn what_names_no_storage_is_a_path() {
    for text in [
        "image",
        "./nbd:x",
        "/dev/sda",
        "a:b",
        "disk 1:2",
        "",
        ":",
        "1nbd://x/y",
        "dir/nbd://x",
        "c:/windows",
        "-:x",
    ] {
        assert_eq!(parse(text), Ok(Location::Path(text.into())), "{text}");
    }
    let strange = OsStr::from_bytes(b"\xff:image");
    assert_eq!(Location::parse(strange), Ok(Location::Path(strange.into())));
}

#[test]
fn nbd_over_tcp() {
    let plain = nbd("nbd://storage.example/disk");
    assert_eq!(plain.address, NbdAddress::Tcp("storage.example".into(), 10809));
    assert_eq!((plain.export.as_str(), plain.tls, plain.wait), ("disk", None, None));
    assert_eq!(nbd("NBD://[fe80::1]:9/").address, NbdAddress::Tcp("fe80::1".into(), 9));
    for (text, export) in [
        ("nbd://h", ""),
        ("nbd://h/", ""),
        ("nbd://h//disk", "/disk"),
        ("nbd://h/hello%20world", "hello world"),
        ("nbd://h/a/../b", "a/../b"),
        ("nbd://h/a+b", "a+b"),
    ] {
        assert_eq!(nbd(text).export, export, "{text}");
    }
    assert_eq!(nbd("nbd://h/x?wait=forever").wait, Some(Wait::Forever));
    assert_eq!(nbd("nbd://h/x?wait=5").wait, Some(Wait::Seconds(5)));
    let tls = nbd("nbds://h/x?cafile=/a%26b&certfile=c+d&keyfile=e").tls.unwrap();
    let files = TlsFiles { ca: Some("/a&b".into()), cert: Some("c+d".into()), key: Some("e".into()) };
    assert_eq!(tls, files);
    assert_eq!(nbd("nbds://h/x").tls, Some(TlsFiles::default()));
}

#[test]
fn nbd_over_a_socket() {
    let local = nbd("nbd+unix:///disk?socket=/run/nbd.sock&wait=9");
    assert_eq!(local.address, NbdAddress::Unix("/run/nbd.sock".into()));
    assert_eq!((local.export.as_str(), local.wait), ("disk", Some(Wait::Seconds(9))));
    assert_eq!(nbd("nbd+unix://?socket=s").export, "");
}

#[test]
fn rbd() {
    let Ok(Location::Rbd(full)) = parse("rbd:pool/space/image?conf=/etc/ceph.conf&id=me&wait=forever") else {
        panic!("refused");
    };
    assert_eq!(
        (full.pool.as_str(), full.namespace.as_deref(), full.image.as_str()),
        ("pool", Some("space"), "image")
    );
    assert_eq!(
        (full.conf, full.id.as_deref(), full.wait),
        (Some("/etc/ceph.conf".into()), Some("me"), Some(Wait::Forever))
    );
    let Ok(Location::Rbd(short)) = parse("rbd:a%2Fb/c") else { panic!("refused") };
    assert_eq!((short.pool.as_str(), short.namespace, short.image.as_str()), ("a/b", None, "c"));
}

#[test]
fn each_mistake_is_named_with_what_to_write() {
    for (text, part) in [
        ("nbd+foo://h/x", "no storage is called 'nbd+foo'; known are rbd:"),
        ("nbd+foo:x", "write ./nbd+foo:x"),
        ("http://h/x", "no storage is called 'http'"),
        ("nbds+unix:///x?socket=s", "no storage is called 'nbds+unix'"),
        ("nbd:x", "'//' must follow 'nbd:', as in nbd://HOST/EXPORT (for a file of that name write ./nbd:x)"),
        ("nbd+unix:/x?socket=s", "nbd+unix:///EXPORT?socket=PATH"),
        ("nbd:///x", "a host must follow"),
        ("nbd://[::1/x", "a host must follow"),
        ("nbd://[what]/x", "a host must follow"),
        ("nbd://[::1]9/x", "a host must follow"),
        ("nbd://a b/x", "a host must follow"),
        ("nbd://h:/x", "'' is no port"),
        ("nbd://h:0/x", "'0' is no port"),
        ("nbd://h:+5/x", "'+5' is no port"),
        ("nbd://h:70000/x", "'70000' is no port"),
        ("nbd+unix://h/x?socket=s", "takes no host ('h')"),
        ("nbd+unix:///x", "the socket is missing"),
        ("nbd+unix:///x?socket=", "'socket' has no value"),
        ("nbd+unix:///x?socket", "'socket' has no value"),
        ("nbd+unix:///x?socket=a&socket=b", "'socket' is there twice"),
        ("nbd://h/x?cafile=a", "'cafile' is not known here; known are wait="),
        ("nbds://h/x?socket=a", "known are cafile=, certfile=, keyfile=, wait="),
        ("nbds://h/x?certfile=a", "go together"),
        ("nbd://h/x?wait=0", "wait=0 is no time"),
        ("nbd://h/x?wait=+1", "wait=+1 is no time"),
        ("nbd://h/x?wait=soon", "'forever'"),
        ("nbd://h/%zz", "'%zz' is badly encoded"),
        ("nbd://h/%f", "badly encoded"),
        ("nbd://h/%ff", "badly encoded"),
        ("nbd://h/%00", "a byte of value zero"),
        ("nbd://h/x#y", "write it as %23"),
        ("rbd:image", "write rbd:POOL/IMAGE"),
        ("rbd:", "write rbd:POOL/IMAGE"),
        ("rbd:a//b", "write rbd:POOL/IMAGE"),
        ("rbd:a/b/c/d", "write rbd:POOL/IMAGE"),
        ("rbd://a/b", "write rbd:POOL/IMAGE"),
        ("rbd:a/b?user=x", "'user' is not known here; known are conf=, id=, wait="),
        ("rbd+ssh:a/b", "no storage is called 'rbd+ssh'"),
    ] {
        let refusal = refusal(text);
        assert!(refusal.contains(part), "{text}: {refusal}");
        assert!(refusal.starts_with(text) && !refusal.contains('\n'), "{text}: {refusal}");
    }
    // Messages to a user go to logs too.
    let told = refusal("nbds://me:s3cret@h/x?cafile=a@b");
    assert!(told.contains("users are not supported") && !told.contains("s3cret"), "{told}");
    assert!(refusal(&format!("nbd://h/{}", "x".repeat(4097))).contains("longer than 4096"));
    let strange = Location::parse(OsStr::from_bytes(b"nbd://\xff")).unwrap_err().to_string();
    assert!(strange.contains("not UTF-8"), "{strange}");
}

fn any_wait() -> impl Strategy<Value = Option<Wait>> {
    prop_oneof![
        Just(None),
        Just(Some(Wait::Forever)),
        (1u32..).prop_map(|seconds| Some(Wait::Seconds(seconds)))
    ]
}

fn path() -> impl Strategy<Value = PathBuf> {
    "[^\0]{1,12}".prop_map(PathBuf::from)
}

fn any_nbd() -> impl Strategy<Value = NbdLocation> {
    let host = prop_oneof!["[a-z0-9.-]{1,12}", Just("::1".to_owned())];
    let tcp = (host, 1u16..).prop_map(|(host, port)| NbdAddress::Tcp(host, port));
    let address = prop_oneof![tcp, path().prop_map(NbdAddress::Unix)];
    let tls = proptest::option::of((proptest::option::of(path()), proptest::option::of((path(), path()))));
    (address, "[^\0]{0,16}", tls, any_wait()).prop_map(|(address, export, tls, wait)| {
        let tls = tls.filter(|_| matches!(address, NbdAddress::Tcp(..))).map(|(ca, pair)| {
            let (cert, key) = pair.unzip();
            TlsFiles { ca, cert, key }
        });
        NbdLocation { address, export, tls, wait }
    })
}

fn any_rbd() -> impl Strategy<Value = RbdLocation> {
    let name = || "[^\0]{1,8}";
    (
        name(),
        proptest::option::of(name()),
        name(),
        proptest::option::of(path()),
        proptest::option::of(name()),
        any_wait(),
    )
        .prop_map(|(pool, namespace, image, conf, id, wait)| RbdLocation {
            pool,
            namespace,
            image,
            conf,
            id,
            wait,
        })
}

proptest! {
    #[test]
    fn what_is_shown_is_understood(location in prop_oneof![any_nbd().prop_map(Location::Nbd), any_rbd().prop_map(Location::Rbd)]) {
        prop_assert_eq!(parse(&location.to_string()), Ok(location));
    }

    #[test]
    fn no_text_ends_in_a_panic(text in "(nbd|nbds|nbd\\+unix|rbd|x)?:?(//)?.{0,40}") {
        let _ = parse(&text);
    }
}
