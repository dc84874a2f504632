from support.stand_ins import install

install()
