// better-sqlite3 on a database in an image: program.js EXTENSION IMAGE
//
// It takes no URIs. So the extension is made the default, and the name leads through the image, which exists.

const Database = require('better-sqlite3');

const [extension, image] = process.argv.slice(2);
new Database(':memory:').loadExtension(extension, 'sqlite3_synclinedefault_init');

const db = new Database(`${image}/app.db`);
db.exec('create table if not exists visit(at text, who text)');
db.prepare("insert into visit values(datetime(), 'Node')").run();
console.log(db.prepare("select count(*) || ' visits' from visit").pluck().get());
db.close();
