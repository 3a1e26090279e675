use super::*;
use proptest::prelude::*;

pub(crate) fn secret(text: &str) -> Secret {
    Secret::new(text.as_bytes()).unwrap()
}

fn key<'a>(master: &'a MasterKey, secret: &'a Secret, name: &'a str) -> NewKey<'a> {
    NewKey { master, secret, name, cost: Cost::LEAST, now_ns: 7 }
}

#[test]
fn each_key_opens_the_image_until_it_is_removed() {
    let (master, mut record) = (MasterKey::random(), KeyRecord::new());
    let [one, two, three] = ["one", "two", "three"].map(secret);
    assert_eq!(record.add(key(&master, &one, "laptop")).unwrap(), 1);
    assert!(matches!(record.remove(1), Err(KeyError::Last)));
    assert_eq!(record.add(key(&master, &two, "")).unwrap(), 2);
    let record = KeyRecord::decode(&record.encode()).unwrap();
    let opens = |record: &KeyRecord, secret: &Secret| match record.open(secret) {
        Ok((found, number)) => {
            assert_eq!(found.as_bytes(), master.as_bytes());
            Some(number)
        }
        Err(error) => {
            assert!(matches!(error, KeyError::Wrong));
            None
        }
    };
    assert_eq!([&one, &two, &three].map(|secret| opens(&record, secret)), [Some(1), Some(2), None]);
    let mut changed = record.clone();
    changed.replace(2, key(&master, &three, "")).unwrap();
    assert_eq!([&one, &two, &three].map(|secret| opens(&changed, secret)), [Some(1), None, Some(2)]);
    changed.remove(1).unwrap();
    assert_eq!([&one, &two, &three].map(|secret| opens(&changed, secret)), [None, None, Some(2)]);
    assert!(matches!(changed.remove(1), Err(KeyError::NoSlot { number: 1 })));
    assert!(matches!(changed.remove(0), Err(KeyError::NoSlot { number: 0 })));
    assert!(matches!(changed.remove(9), Err(KeyError::NoSlot { number: 9 })));
    for _ in 0..7 {
        changed.add(key(&master, &one, "")).unwrap();
    }
    assert!(matches!(changed.add(key(&master, &one, "")), Err(KeyError::Full)));
    for name in ["a\nb", &"x".repeat(65)] {
        assert!(matches!(changed.replace(1, key(&master, &one, name)), Err(KeyError::Name)));
    }
}

/// Otherwise a name or a cost could be changed by somebody without a key.
#[test]
fn no_byte_of_a_slot_can_be_changed() {
    let (master, mut record, one) = (MasterKey::random(), KeyRecord::new(), secret("one"));
    record.add(key(&master, &one, "laptop")).unwrap();
    let block = record.encode();
    for at in (KEY_ID..FIXED_END).chain(FIRST_SLOT..FIRST_SLOT + SLOT_BYTES) {
        let mut changed = block;
        changed[at] ^= 1;
        let checksum = crc(&changed[CHECKED..]);
        changed[CHECKSUM..CHECKED].copy_from_slice(&checksum.to_le_bytes());
        let opened = KeyRecord::decode(&changed).map(|record| record.open(&one).is_ok());
        assert!(!opened.unwrap_or_default(), "byte {at}");
    }
}

#[test]
fn a_slot_that_would_take_too_long_is_refused() {
    let (master, mut record, one) = (MasterKey::random(), KeyRecord::new(), secret("one"));
    record.add(key(&master, &one, "")).unwrap();
    let allowed = Cost { memory_kib: 256 << 10, passes: 4, lanes: 16 };
    let costs = [
        (Cost::default(), true),
        (Cost::LEAST, true),
        (allowed, true),
        (Cost { memory_kib: (256 << 10) + 1, ..Cost::LEAST }, false),
        (Cost { passes: 5, ..allowed }, false),
        (Cost { passes: 0, ..allowed }, false),
        (Cost { lanes: 17, ..allowed }, false),
        (Cost { lanes: 0, ..allowed }, false),
        (Cost { memory_kib: 15, passes: 1, lanes: 2 }, false),
        (Cost { memory_kib: u32::MAX, passes: u32::MAX, lanes: u32::MAX }, false),
    ];
    for (cost, is_allowed) in costs {
        record.slots[0].as_mut().unwrap().cost = cost;
        assert_eq!(KeyRecord::decode(&record.encode()).is_ok(), is_allowed, "{cost:?}");
    }
}

#[test]
fn secrets_have_a_length() {
    assert!(matches!(Secret::new(b""), Err(KeyError::Length)));
    assert!(Secret::new(&[1; crate::SECRET_BYTES_MAX]).is_ok());
    assert!(matches!(Secret::new(&[1; crate::SECRET_BYTES_MAX + 1]), Err(KeyError::Length)));
    let longest = [&[1; crate::SECRET_BYTES_MAX][..], b"\n"].concat();
    assert_eq!(Secret::new(&longest).unwrap().as_bytes().len(), crate::SECRET_BYTES_MAX);
    assert!(matches!(Secret::new(&[&longest[..], b"\n"].concat()), Err(KeyError::Length)));
    let kept = |text: &str| Secret::new(text.as_bytes()).map(|secret| secret.as_bytes().to_vec()).ok();
    assert_eq!(kept("word\n"), Some(b"word".to_vec()));
    assert_eq!(kept("word\r\n"), Some(b"word\r".to_vec()));
    assert_eq!(kept("word\r"), Some(b"word\r".to_vec()));
    assert_eq!(kept("two words \n\n"), Some(b"two words \n".to_vec()));
    assert_eq!(kept("\n"), None);
}

proptest! {
    #[test]
    fn hostile_bytes_are_refused(at in 0..BLOCK_BYTES, byte in any::<u8>(), mends in any::<bool>()) {
        let (master, mut record, one) = (MasterKey::from_bytes(&[1; 64]), KeyRecord::new(), secret("one"));
        record.add(key(&master, &one, "laptop")).unwrap();
        let mut block = record.encode();
        block[at] = byte;
        if mends {
            let checksum = crc(&block[CHECKED..]);
            block[CHECKSUM..CHECKED].copy_from_slice(&checksum.to_le_bytes());
        }
        if let Ok(decoded) = KeyRecord::decode(&block) {
            prop_assert_eq!(decoded.encode(), block);
        }
    }
}
