/* Extended attributes and access control lists. */
#include "calls.h"

CASE(attributes_are_set_and_got)
{
	char room[20];

	make("f", 1);
	TRY(getxattr("f", "user.x", room, sizeof(room)));
	TRY(setxattr("f", "user.x", "value", 5, XATTR_REPLACE));
	TRY(setxattr("f", "user.x", "value", 5, XATTR_CREATE));
	TRY(setxattr("f", "user.x", "value", 5, XATTR_CREATE));
	TRY(setxattr("f", "user.x", "other", 5, XATTR_REPLACE));
	TRY(getxattr("f", "user.x", room, sizeof(room)));
	bytes("value", room, 5);
	TRY(getxattr("f", "user.x", room, 0));
	TRY(getxattr("f", "user.x", room, 3));
	TRY(setxattr("f", "user.empty", "", 0, 0));
	TRY(getxattr("f", "user.empty", room, sizeof(room)));
	TRY(listxattr("f", NULL, 0) > 0 ? 0 : -1);
	TRY(listxattr("f", room, 3));
	TRY(removexattr("f", "user.x"));
	TRY(removexattr("f", "user.x"));
	TRY(getxattr("none", "user.x", room, sizeof(room)));
	TRY(setxattr("f", "user.x", "v", 1, 4));
}

CASE(attributes_created_and_replaced_at_once)
{
	make("f", 1);
	TRY(setxattr("f", "user.x", "v", 1, XATTR_CREATE | XATTR_REPLACE));
	MUST(setxattr("f", "user.y", "v", 1, 0));
	TRY(setxattr("f", "user.y", "v", 1, XATTR_CREATE | XATTR_REPLACE));
	TRY(getxattr("f", "user.x", NULL, 0));
}

CASE(names_of_attributes)
{
	char name[300] = "user.", longer[300];

	make("f", 1);
	memset(name + 5, 'n', 250);
	TRY(setxattr("f", name, "v", 1, 0));
	TRY(getxattr("f", name, NULL, 0));
	memcpy(longer, name, 255);
	longer[255] = 'n';
	longer[256] = 0;
	TRY(setxattr("f", longer, "v", 1, 0));
	TRY(getxattr("f", longer, NULL, 0));
	TRY(removexattr("f", longer));
	TRY(setxattr("f", "", "v", 1, 0));
	TRY(getxattr("f", "", NULL, 0));
	TRY(removexattr("f", ""));
}

CASE(names_of_nothing_but_a_namespace)
{
	make("f", 1);
	TRY(setxattr("f", "user.", "v", 1, 0));
	TRY(getxattr("f", "user.", NULL, 0));
	TRY(removexattr("f", "user."));
	TRY(setxattr("f", "trusted.", "v", 1, 0));
	TRY(getxattr("f", "trusted.", NULL, 0));
	TRY(setxattr("f", "security.", "v", 1, 0));
	TRY(getxattr("f", "security.", NULL, 0));
	TRY(removexattr("f", "security."));
}

CASE(namespaces_of_attributes)
{
	make("f", 1);
	TRY(setxattr("f", "user", "v", 1, 0));
	TRY(setxattr("f", "x", "v", 1, 0));
	TRY(setxattr("f", "x.y", "v", 1, 0));
	TRY(getxattr("f", "x.y", NULL, 0));
	TRY(removexattr("f", "x.y"));
	TRY(setxattr("f", "User.x", "v", 1, 0));
	TRY(setxattr("f", "trusted.x", "v", 1, 0));
	TRY(getxattr("f", "trusted.x", NULL, 0));
	TRY(removexattr("f", "trusted.x"));
	TRY(setxattr("f", "security.x", "v", 1, 0));
	TRY(getxattr("f", "security.x", NULL, 0));
	TRY(setxattr("f", "system.x", "v", 1, 0));
	TRY(getxattr("f", "system.x", NULL, 0));
	TRY(removexattr("f", "system.x"));
	TRY(setxattr("f", "system.data", "v", 1, 0));
}

CASE(namespace_of_the_hurd)
{
	make("f", 1);
	TRY(setxattr("f", "gnu.x", "v", 1, 0));
}

PREPARED(attributes_that_only_root_sees)
{
	char room[200];
	long len;

	make("f", 1);
	own("f");
	MUST(setxattr("f", "trusted.x", "v", 1, 0));
	MUST(setxattr("f", "user.x", "v", 1, 0));
	act();
	len = TRY(listxattr("f", room, sizeof(room)));
	bytes("names", room, len);
	TRY(getxattr("f", "trusted.x", room, sizeof(room)));
	TRY(setxattr("f", "trusted.x", "w", 1, 0));
	TRY(removexattr("f", "trusted.x"));
}

CASE(values_of_attributes)
{
	static char value[70000];

	make("f", 1);
	TRY(setxattr("f", "user.x", value, 1000, 0));
	TRY(setxattr("f", "user.x", value, 65537, 0));
	TRY(getxattr("f", "user.x", value, sizeof(value)));
	TRY(setxattr("f", "user.x", NULL, 0, 0));
	TRY(getxattr("f", "user.x", value, sizeof(value)));
}

CASE(values_larger_than_a_block)
{
	static char value[65536];

	make("f", 1);
	TRY(setxattr("f", "user.x", value, 5000, 0));
	TRY(setxattr("f", "user.x", value, 65536, 0));
}

CASE(many_attributes)
{
	static char room[70000];
	char name[40];
	int failed = 0;

	make("f", 1);
	for (int index = 0; index < 50; index++) {
		sprintf(name, "user.number-%d", index);
		failed += setxattr("f", name, name, strlen(name), 0) < 0;
	}
	tell("%d refused", failed);
	TRY(listxattr("f", room, sizeof(room)));
	for (int index = 0; index < 50; index += 2) {
		sprintf(name, "user.number-%d", index);
		failed += removexattr("f", name) < 0;
	}
	tell("%d refused", failed);
	TRY(listxattr("f", room, sizeof(room)));
}

CASE(more_attributes_than_a_block_holds)
{
	static char value[500];
	char name[40];
	int failed = 0;

	make("f", 1);
	for (int index = 0; index < 100; index++) {
		sprintf(name, "user.number-%d", index);
		failed += setxattr("f", name, value, sizeof(value), 0) < 0;
	}
	tell("some are refused: %d", failed > 0);
}

PREPARED(attributes_of_other_kinds)
{
	MUST(mkfifo("fifo", 0666));
	own("fifo");
	MUST(mkdir("d", 0755));
	own("d");
	MUST(mkdir("sticky", 0777));
	MUST(chmod("sticky", 01777));
	theirs("sticky");
	act();
	TRY(setxattr("fifo", "user.x", "v", 1, 0));
	TRY(getxattr("fifo", "user.x", NULL, 0));
	TRY(setxattr("fifo", "trusted.x", "v", 1, 0));
	TRY(setxattr("d", "user.x", "v", 1, 0));
	TRY(getxattr("d", "user.x", NULL, 0));
	TRY(setxattr("sticky", "user.x", "v", 1, 0));
	TRY(setxattr("d", "security.capability", "v", 1, 0));
}

PREPARED(attributes_need_permission)
{
	make_mode("readable", 1, 0444);
	theirs("readable");
	MUST(setxattr("readable", "user.x", "v", 1, 0));
	make_mode("writable", 1, 0222);
	theirs("writable");
	MUST(setxattr("writable", "user.x", "v", 1, 0));
	act();
	TRY(getxattr("readable", "user.x", NULL, 0));
	TRY(setxattr("readable", "user.x", "w", 1, 0));
	TRY(removexattr("readable", "user.x"));
	TRY(getxattr("writable", "user.x", NULL, 0));
	TRY(setxattr("writable", "user.x", "w", 1, 0));
	TRY(listxattr("writable", NULL, 0));
	TRY(setxattr("writable", "security.x", "w", 1, 0));
}

/* An access control list as setxattr(2) takes it. */
struct acl {
	uint32_t version;
	struct { uint16_t tag, perm; uint32_t id; } entry[6];
};
#define ACL(count) (4 + 8 * (count))
enum { USER_OBJ = 1, A_USER = 2, GROUP_OBJ = 4, A_GROUP = 8, MASK = 16, OTHERS = 32 };
#define NO_ID 0xffffffff

static const struct acl reader = { 2, { { USER_OBJ, 6, NO_ID }, { A_USER, 4, USER }, { GROUP_OBJ, 0, NO_ID }, { MASK, 4, NO_ID }, { OTHERS, 0, NO_ID } } };
static const struct acl writer = { 2, { { USER_OBJ, 6, NO_ID }, { GROUP_OBJ, 0, NO_ID }, { A_GROUP, 7, CLUB }, { MASK, 6, NO_ID }, { OTHERS, 0, NO_ID } } };
static const struct acl minimal = { 2, { { USER_OBJ, 7, NO_ID }, { GROUP_OBJ, 5, NO_ID }, { OTHERS, 4, NO_ID } } };
#define ACCESS "system.posix_acl_access"
#define DEFAULT "system.posix_acl_default"

PREPARED(lists_permit)
{
	make_mode("reader", 1, 0600);
	theirs("reader");
	MUST(setxattr("reader", ACCESS, &reader, ACL(5), 0));
	make_mode("writer", 1, 0600);
	theirs("writer");
	MUST(setxattr("writer", ACCESS, &writer, ACL(5), 0));
	act();
	mode_of("reader");
	TRY(close(open("reader", O_RDONLY)));
	TRY(close(open("reader", O_RDWR)));
	mode_of("writer");
	TRY(close(open("writer", O_RDWR)));
	TRY(access("writer", X_OK));
	TRY(setxattr("reader", ACCESS, &minimal, ACL(3), 0));
	TRY(removexattr("reader", ACCESS));
}

CASE(lists_are_modes)
{
	char room[200];
	long len;

	make_mode("f", 1, 0640);
	TRY(getxattr("f", ACCESS, room, sizeof(room)));
	TRY(setxattr("f", ACCESS, &minimal, ACL(3), 0));
	mode_of("f");
	TRY(getxattr("f", ACCESS, room, sizeof(room)));
	TRY(setxattr("f", ACCESS, &reader, ACL(5), 0));
	mode_of("f");
	len = TRY(getxattr("f", ACCESS, room, sizeof(room)));
	bytes("list", room, len > 0 ? len : 0);
	TRY(chmod("f", 0777));
	len = TRY(getxattr("f", ACCESS, room, sizeof(room)));
	bytes("list", room, len > 0 ? len : 0);
	TRY(listxattr("f", room, sizeof(room)));
	TRY(removexattr("f", ACCESS));
	mode_of("f");
	TRY(removexattr("f", ACCESS));
	TRY(setxattr("f", ACCESS, NULL, 0, 0));
}

CASE(lists_that_are_none)
{
	struct acl list = reader;

	make("f", 1);
	MUST(mkdir("d", 0755));
	TRY(setxattr("f", DEFAULT, &reader, ACL(5), 0));
	TRY(setxattr("f", ACCESS, &reader, ACL(4), 0));
	TRY(setxattr("f", ACCESS, &reader, ACL(5) - 1, 0));
	TRY(setxattr("f", ACCESS, &reader, 4, 0));
	list.version = 1;
	TRY(setxattr("f", ACCESS, &list, ACL(5), 0));
	list = reader;
	list.entry[0].perm = 8;
	TRY(setxattr("f", ACCESS, &list, ACL(5), 0));
	list = reader;
	list.entry[3].tag = OTHERS;
	TRY(setxattr("f", ACCESS, &list, ACL(5), 0));
	list = reader;
	list.entry[1].tag = 64;
	TRY(setxattr("f", ACCESS, &list, ACL(5), 0));
	TRY(getxattr("d", DEFAULT, NULL, 0));
	TRY(removexattr("d", DEFAULT));
	TRY(setxattr("f", ACCESS, &reader, ACL(5), XATTR_CREATE));
	TRY(setxattr("f", ACCESS, &reader, ACL(5), XATTR_CREATE));
	TRY(setxattr("d", DEFAULT, &reader, ACL(5), XATTR_REPLACE));
}

CASE(lists_are_handed_down)
{
	char room[200];
	long len;

	MUST(mkdir("d", 0755));
	TRY(setxattr("d", DEFAULT, &writer, ACL(5), 0));
	umask(077);
	TRY(close(open("d/f", O_CREAT | O_RDWR, 0666)));
	TRY(mkdir("d/d", 0777));
	TRY(mkfifo("d/fifo", 0622));
	TRY(symlink("x", "d/link"));
	mode_of("d/f");
	mode_of("d/d");
	mode_of("d/fifo");
	mode_of("d/link");
	len = TRY(getxattr("d/f", ACCESS, room, sizeof(room)));
	bytes("list", room, len > 0 ? len : 0);
	len = TRY(getxattr("d/d", DEFAULT, room, sizeof(room)));
	bytes("list", room, len > 0 ? len : 0);
	TRY(close(open("d", O_TMPFILE | O_RDWR, 0666)));
	TRY(removexattr("d", DEFAULT));
	TRY(close(open("d/after", O_CREAT | O_RDWR, 0666)));
	mode_of("d/after");
}

PREPARED(lists_and_set_group_id)
{
	make_mode("f", 1, 0755);
	own("f");
	MUST(chown("f", -1, OTHER));
	MUST(chmod("f", 02755));
	act();
	TRY(setxattr("f", ACCESS, &minimal, ACL(3), 0));
	mode_of("f");
}

PREPARED(times_that_attributes_move)
{
	make("f", 1);
	own("f");
	MUST(mkdir("d", 0755));
	own("d");
	act();
	MOVES("f", setxattr("f", ACCESS, &reader, ACL(5), 0));
	MOVES("f", setxattr("f", ACCESS, &minimal, ACL(3), 0));
	MOVES("d", setxattr("d", DEFAULT, &reader, ACL(5), 0));
	MOVES("d", removexattr("d", DEFAULT));
	MOVES("f", setxattr("f", "user.x", "v", 1, XATTR_REPLACE));
	MOVES("f", listxattr("f", NULL, 0) < 0 ? -1 : 0);
}
